"""Reading a request body: bounded in size, time and values while it arrives, then checked.

Knows nothing of what the fields mean.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from chairlift.errors import InvalidRequestError
from chairlift.server.context import context_of
from chairlift.server.errors import BodyTimeoutError, BodyTooLargeError, invalid_body
from chairlift.server.json_size import CONTAINER_WEIGHT, has_more_containers, is_nested_deeper, weigh_values
from chairlift.server.workers import in_parser

LONG_BODY_BYTES = 65_536
"""What is longer is parsed in a thread."""

BODY_DEADLINE = "body_deadline_s"
"""Where a request's state has the time of the event loop by which its body must be here, if that has begun already."""

MAX_FIELDS = 256
"""Fields of a long body at most, however few of them are known."""

MAX_NESTING = 201
"""Arrays and objects of a body that may be within each other: as many as pydantic's parser takes, which short ones go
to.
"""

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The request's JSON body as a checked model; notes when it had arrived.

    Raises:
        BodyTooLargeError: more bytes, or values, than ``--max-body-bytes`` or ``--max-body-values``.
        BodyTimeoutError: it was not here within ``--body-timeout``.
        OverloadedError: the bodies of all requests together take ``--max-buffered-bytes``.
        InvalidRequestError: not JSON, or a field is missing, unknown or of the wrong type.
    """
    async with _received(request) as raw:
        request.state.arrival_ns = time.monotonic_ns()
        max_values = context_of(request).sections.limits.max_body_values
        if len(raw) <= LONG_BODY_BYTES:
            return parse(raw, model, max_values)
        return await in_parser(parse, raw, model, max_values)


async def read_bytes(request: Request) -> bytes:
    """The request's body as it came.

    Raises:
        BodyTooLargeError, BodyTimeoutError, OverloadedError: as for :func:`read_body`.
    """
    async with _received(request) as raw:
        return raw


def is_long_body(request: Request) -> bool:
    """Whether what is made of the request's body may take long, so that it is to be done in a thread."""
    announced = request.headers.get("content-length", "")
    return not announced.isdigit() or int(announced) > LONG_BODY_BYTES


def parse(raw: bytes, model: type[Model], max_values: int) -> Model:
    """Make the model of a body.

    Raises:
        BodyTooLargeError: it has more values than that.
        InvalidRequestError: not JSON, or a field is missing, unknown or of the wrong type.
    """
    try:
        _check_values(raw, max_values)
        if len(raw) <= LONG_BODY_BYTES:
            return model.model_validate_json(raw)
        # In two steps, between which the event loop has its turn, and by the parser that is faster with long texts.
        # What only the other one can say precisely is left to it.
        try:
            value: Any = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return model.model_validate_json(raw)
        if isinstance(value, dict) and (num_fields := len(cast("dict[str, Any]", value))) > MAX_FIELDS:
            raise InvalidRequestError(
                f"the request body has {num_fields} fields, and no API has more than {MAX_FIELDS}"
            )
        if has_more_containers(raw, MAX_NESTING) and is_nested_deeper(cast("object", value), MAX_NESTING):
            raise _too_deep()
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid" and "recursion limit" in first["msg"]:
            raise _too_deep() from None
        raise invalid_body(error) from None


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(
        f"the request body has more than {MAX_NESTING} arrays and objects within each other, which is the limit"
    )


def _check_values(raw: bytes, max_values: int) -> None:
    if len(raw) * CONTAINER_WEIGHT <= max_values:
        return  # it has no more, whatever is in it
    num_values = weigh_values(raw, max_values)
    if num_values > max_values:
        raise BodyTooLargeError(
            f"the request body has {num_values} values (an array or object counts as 8, a key as 4), but "
            f"--max-body-values is {max_values}"
        )


@asynccontextmanager
async def _received(request: Request) -> AsyncGenerator[bytes, None]:
    """The body, counted as being in memory for as long as this is open."""
    context = context_of(request)
    max_bytes, timeout_s = context.settings.max_body_bytes, context.sections.connections.body_timeout
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes, f"{announced} bytes")
    deadline_s: float | None = getattr(request.state, BODY_DEADLINE, None)
    if deadline_s is None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
    received = bytearray()
    bodies = context.bodies
    try:
        try:
            async with asyncio.timeout_at(deadline_s):
                async for block in request.stream():
                    bodies.take(len(block))
                    received += block
                    if len(received) > max_bytes:
                        raise _too_large(max_bytes, f"at least {len(received)} bytes")
        except TimeoutError:
            raise BodyTimeoutError(
                f"{len(received)} bytes of the request body came within {timeout_s:g} s, and the rest did not; "
                "--body-timeout limits this"
            ) from None
        yield bytes(received)
    finally:
        bodies.release(len(received))


def _too_large(max_bytes: int, given: str) -> BodyTooLargeError:
    return BodyTooLargeError(f"the request body has {given}, but --max-body-bytes is {max_bytes}")
