"""Every failure as an HTTP answer in the shape of the API that was asked. Knows nothing of what endpoints do.

What is refused before there is an endpoint, by a guard, the router or a connection, is answered here too.
"""

import logging
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from chairlift.errors import ChairliftError
from chairlift.server.anthropic.errors import messages_error, messages_error_response
from chairlift.server.errors import ErrorBody, ErrorDetail, error_response, shorten

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

_OF_ANTHROPIC = "/v1/messages"
"""Where Anthropic's API begins; everything else has OpenAI's shape."""

_CLIENT_CLOSED_REQUEST = 499
"""Nobody reads it; it is what the logs of other servers show for a client that left."""


def refusal(path: str, error: Exception) -> Response:
    """The HTTP answer for an exception at a path."""
    return messages_error_response(error) if _is_of_anthropic(path) else error_response(error)


async def handle_chairlift_error(request: Request, error: Exception) -> Response:
    """Answer for an error that Chairlift raised on purpose."""
    if isinstance(error, ChairliftError) and error.http_status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("request failed", exc_info=error)
    return refusal(request.url.path, error)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer for what the router refuses: unknown paths and methods."""
    if not isinstance(error, HTTPException):
        return refusal(request.url.path, error)
    path = shorten(request.url.path)
    message = {
        HTTPStatus.NOT_FOUND: f"there is no {path} here",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not allowed on {path}",
    }.get(HTTPStatus(error.status_code), str(error.detail))
    kind = "invalid_request_error" if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "internal_server_error"
    body: msgspec.Struct = ErrorBody(ErrorDetail(message, kind))
    if _is_of_anthropic(request.url.path):
        body = messages_error(error.status_code, message)
    return Response(_encode(body), error.status_code, error.headers, media_type="application/json")


async def handle_client_left(_request: Request, _error: Exception) -> Response:
    """Answer for a client that left before it had its answer, or before its request was all here."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def handle_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer for a fault of ours. The framework raises the error again after this, so it is logged once."""
    return refusal(request.url.path, error)


def _is_of_anthropic(path: str) -> bool:
    return path == _OF_ANTHROPIC or path.startswith(_OF_ANTHROPIC + "/")
