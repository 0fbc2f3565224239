"""Every failure as an HTTP answer in OpenAI's shape. Knows nothing of which endpoint failed."""

import reprlib
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from chairlift.errors import (
    AuthenticationError,
    ChairliftError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    RequestTooLongError,
    UnknownModelError,
)

_encode = msgspec.json.Encoder().encode
_MAX_QUOTED_CHARS = 100
_MAX_QUOTED_ITEMS = 40

_CODES: dict[type[ChairliftError], str] = {
    RequestTooLongError: "context_length_exceeded",
    UnknownModelError: "model_not_found",
    AuthenticationError: "invalid_api_key",
}

_bounded = reprlib.Repr()
"""Writes out no more of a value than can be quoted, however much a client sent."""
_bounded.maxlevel = 3
_bounded.maxlist = _bounded.maxdict = _MAX_QUOTED_ITEMS
_bounded.maxstring = _bounded.maxlong = _bounded.maxother = 10 * _MAX_QUOTED_CHARS


class BodyTooLargeError(InvalidRequestError):
    """The request body exceeds ``--max-body-bytes``."""

    http_status = 413


class BodyTimeoutError(InvalidRequestError):
    """The request body took longer than ``--body-timeout``."""

    http_status = 408


class ErrorDetail(msgspec.Struct):
    """What went wrong, with OpenAI's field names."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """Body of every answer that is not a success."""

    error: ErrorDetail


def describe(error: Exception) -> ErrorBody:
    """OpenAI's error body for an exception; anything unexpected shows no internals."""
    if not isinstance(error, ChairliftError) or error.http_status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ErrorBody(ErrorDetail("internal error; the log of the server has the details", "internal_server_error"))
    param = error.param if isinstance(error, InvalidRequestError) else None
    return ErrorBody(ErrorDetail(error.message, error.error_type, param, _CODES.get(type(error))))


def error_response(error: Exception) -> Response:
    """The HTTP answer for an exception."""
    status = error.http_status if isinstance(error, ChairliftError) else HTTPStatus.INTERNAL_SERVER_ERROR
    headers: dict[str, str] = {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(error.retry_after_s)
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    elif isinstance(error, DeadlineExceededError):
        # OpenAI's clients try again after any 5xx, but who wanted the answer by then does not want it later.
        headers["X-Should-Retry"] = "false"
    elif isinstance(error, BodyTimeoutError):
        headers["Connection"] = "close"  # or the rest of the body would be read, however slowly it comes
    elif isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(_encode(describe(error)), status, headers, media_type="application/json")


def shorten(text: str) -> str:
    """What a client sent, as an error message may quote it."""
    return text if len(text) <= _MAX_QUOTED_CHARS else text[:_MAX_QUOTED_CHARS] + "…"


def invalid_body(error: ValidationError) -> InvalidRequestError:
    """The first thing that is wrong with a request body, naming the field as a client would write it."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return InvalidRequestError(f"the request body is not valid JSON: {first['msg']}")
    param = _field_path(first["loc"])
    if first["type"] == "too_long" and isinstance(first["input"], list):
        num_items = len(cast("list[Any]", first["input"]))
        most = first.get("ctx", {}).get("max_length")
        return InvalidRequestError(f"{param} has {num_items} items, but a request may have {most} there", param=param)
    quoted = "" if first["type"] == "missing" else f", got {_quote(first['input'])}"
    return InvalidRequestError(f"{param or 'the request body'}: {first['msg']}{quoted}", param=param)


@contextmanager
def blaming(field: str) -> Generator[None]:
    """Say of this field what is said of ``prompt`` within: where a prompt is made of another field, its name is no
    help to whoever sent the request.
    """
    try:
        yield
    except InvalidRequestError as error:
        if error.param == "prompt":
            error.param = field
        raise


def _field_path(location: tuple[int | str, ...]) -> str | None:
    """``messages[0].content`` for ``("messages", 0, "content")``; names of union branches are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
    return path or None


def _quote(value: Any) -> str:
    return shorten(_bounded.repr(value))
