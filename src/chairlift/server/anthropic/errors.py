"""Every failure as an HTTP answer in Anthropic's shape. Knows nothing of which endpoint failed."""

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from chairlift.errors import ChairliftError, InvalidRequestError
from chairlift.server.anthropic.objects import MessagesError, MessagesErrorDetail
from chairlift.server.errors import describe, error_response

_encode = msgspec.json.Encoder().encode

_TYPES = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}
_FIELD_OF_CHAT, _FIELD = "response_format.json_schema.schema", "output_config.format.schema"
"""What an error names where a message is answered as a chat request, and where that came from."""
_BODY_HEADERS = frozenset({"content-length", "content-type"})


def to_messages_error(error: Exception) -> MessagesError:
    """Anthropic's error body for an exception; anything unexpected shows no internals."""
    status = error.http_status if isinstance(error, ChairliftError) else HTTPStatus.INTERNAL_SERVER_ERROR
    message = describe(error).error.message.replace(_FIELD_OF_CHAT, _FIELD)
    if isinstance(error, InvalidRequestError) and error.param is not None and error.param.partition("[")[0] == "stop":
        message = message.replace("stop", "stop_sequences", 1) if message.startswith("stop") else message
    return messages_error(status, message)


def messages_error(status: int, message: str) -> MessagesError:
    """Anthropic's error body for a status."""
    kind = _TYPES.get(HTTPStatus(status))
    if kind is None:
        is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "api_error" if is_ours else "invalid_request_error"
    return MessagesError(MessagesErrorDetail(kind, message))


def messages_error_response(error: Exception) -> Response:
    """The HTTP answer for an exception."""
    refusal = error_response(error)
    headers = {name: value for name, value in refusal.headers.items() if name not in _BODY_HEADERS}
    return Response(_encode(to_messages_error(error)), refusal.status_code, headers, media_type="application/json")
