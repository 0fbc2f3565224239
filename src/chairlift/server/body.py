"""Reading a request body: bounded while it arrives, then checked. Knows nothing of what the fields mean."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from chairlift.server.context import context_of
from chairlift.server.errors import BodyTooLargeError, invalid_body

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The request's JSON body as a checked model.

    Raises:
        BodyTooLargeError: more bytes came, or were announced, than ``--max-body-bytes``.
        InvalidRequestError: not JSON, or a field is missing, unknown or of the wrong type.
    """
    raw = await _read_bounded(request, context_of(request).settings.max_body_bytes)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise invalid_body(error) from None


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
