"""Reading a request body: bounded while it arrives, then checked. Knows nothing of what the fields mean."""

import time
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from chairlift.server.context import context_of
from chairlift.server.errors import BodyTooLargeError, invalid_body

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The request's JSON body as a checked model; notes when it had arrived.

    Raises:
        BodyTooLargeError: more bytes came, or were announced, than ``--max-body-bytes``.
        InvalidRequestError: not JSON, or a field is missing, unknown or of the wrong type.
    """
    raw = await read_bytes(request)
    request.state.arrival_ns = time.monotonic_ns()
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise invalid_body(error) from None


async def read_bytes(request: Request) -> bytes:
    """The request's body as it came.

    Raises:
        BodyTooLargeError: more bytes came, or were announced, than ``--max-body-bytes``.
    """
    return await _read_bounded(request, context_of(request).settings.max_body_bytes)


async def _read_bounded(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes, f"{announced} bytes")
    received = bytearray()
    async for block in request.stream():
        received += block
        if len(received) > max_bytes:
            raise _too_large(max_bytes, f"at least {len(received)} bytes")
    return bytes(received)


def _too_large(max_bytes: int, given: str) -> BodyTooLargeError:
    return BodyTooLargeError(f"the request body has {given}, but --max-body-bytes is {max_bytes}")
