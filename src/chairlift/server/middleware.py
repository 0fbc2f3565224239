"""What happens around every request: its label, and who may pass. Knows nothing of bodies or endpoints."""

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from chairlift.errors import AuthenticationError, ChairliftError, InvalidRequestError
from chairlift.server.access import ANYBODY, Access, Caller
from chairlift.server.refusals import refusal

PUBLIC_PATHS = frozenset({"/health", "/ping", "/ready", "/load", "/metrics", "/version", "/docs", "/openapi.json"})
"""Answered without a key; every other path needs it."""

REQUESTS_PATH = "/v1/requests"
"""The list is for the administrator; what is below it for the administrator or the sender."""
ADMIN_PATH = "/admin/"
ADMIN_PATHS = frozenset({REQUESTS_PATH, "/reset_prefix_cache"})

Asked = Literal["nobody", "client", "client or administrator", "administrator"]
"""Whose key a path asks for, where there are keys."""

_MAX_LABEL_CHARS = 128


class AdministrationOffError(InvalidRequestError):
    """There is no key for administration, so its endpoints do not exist."""

    http_status = HTTPStatus.NOT_FOUND


def asked_for(path: str) -> Asked:
    """Whose key a path asks for."""
    if path in PUBLIC_PATHS:
        return "nobody"
    if path.startswith(ADMIN_PATH) or path in ADMIN_PATHS:
        return "administrator"
    return "client or administrator" if path.startswith(f"{REQUESTS_PATH}/") else "client"


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


class AccessGuard:
    """Lets nobody in who may not be, and notes who it is that is let in."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            caller = self._find_caller(scope["path"], Headers(scope=scope))
        except ChairliftError as error:
            await refusal(scope["path"], error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self.app(scope, receive, send)

    def _find_caller(self, path: str, headers: Headers) -> Caller:
        asked = asked_for(path)
        if asked == "nobody":
            return ANYBODY
        if asked == "administrator":
            return self._admin(path, headers)
        caller = self._access.find_caller(headers)
        if asked == "client or administrator" and (caller is None or caller is ANYBODY):
            caller = self._access.find_admin(headers) or caller
        if caller is None:
            raise AuthenticationError("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
        return caller

    def _admin(self, path: str, headers: Headers) -> Caller:
        if not self._access.has_admin:
            raise AdministrationOffError(f"there is no {path} here; --admin-api-key turns administration on")
        admin = self._access.find_admin(headers)
        if admin is None:
            raise AuthenticationError(
                "the administrator's key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            )
        return admin
