"""What happens around every request: its label and the API key. Knows nothing of bodies or endpoints."""

import hmac
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from chairlift.errors import AuthenticationError
from chairlift.server.errors import error_response

PUBLIC_PATHS = frozenset({"/health", "/metrics", "/version", "/docs", "/openapi.json"})
"""Answered without a key; every other path needs it."""

_MAX_LABEL_CHARS = 128


def request_label(scope: Scope) -> str | None:
    """The client's X-Request-Id, if it is short and printable. Only a label: two requests may carry the same one."""
    label = Headers(scope=scope).get("x-request-id")
    return label if label and len(label) <= _MAX_LABEL_CHARS and label.isascii() and label.isprintable() else None


class RequestLabel:
    """Sends the client's X-Request-Id back."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        label = request_label(scope) if scope["type"] == "http" else None
        if label is None:
            await self.app(scope, receive, send)
            return

        async def send_labelled(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = label
            await send(message)

        await self.app(scope, receive, send_labelled)


class ApiKeyGuard:
    """Refuses requests without the right bearer token. The key is compared in constant time and never logged."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS or self._is_authorised(scope):
            await self.app(scope, receive, send)
            return
        error = AuthenticationError("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
        await error_response(error)(scope, receive, send)

    def _is_authorised(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(token.strip().encode("latin-1"), self._expected)
        return is_right and scheme.lower() == "bearer"
