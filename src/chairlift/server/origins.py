"""Which names and which web pages requests may come through. Knows nothing of keys or endpoints.

A page that a browser has open can send requests to any address that the browser reaches, a server on the same machine
included. Two headers, which pages cannot choose, tell them from clients: ``Origin`` says which page it is; and ``Host``
has the name of the server that the page was loaded from, if its owner lets that name point here (DNS rebinding).
"""

import ipaddress
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from chairlift.errors import ChairliftError, ConfigurationError, InvalidRequestError
from chairlift.server.announce import is_loopback
from chairlift.server.errors import shorten
from chairlift.server.refusals import refusal

ANY = "*"
_LOCAL_NAME = "localhost"


class OriginRefusedError(InvalidRequestError):
    """The request comes from a web page, or under a name, that is not allowed."""

    http_status = HTTPStatus.FORBIDDEN


class OriginRules:
    """Who may come.

    Args:
        bound_host: the address that the server listens on.
        allowed_hosts: names that the Host header may have, as ``--allowed-hosts`` gives them; ``*.example.com`` stands
            for every name below it.
        allowed_origins: origins of pages, as ``--allowed-origins`` gives them.

    Raises:
        ConfigurationError: an origin is none.
    """

    def __init__(self, bound_host: str, allowed_hosts: str | None = None, allowed_origins: str | None = None) -> None:
        self._hosts = None if allowed_hosts is None else frozenset(name.lower() for name in _listed(allowed_hosts))
        if self._hosts is None and is_loopback(bound_host):
            self._hosts = frozenset({_LOCAL_NAME, "*." + _LOCAL_NAME})
        self.origins = tuple(_listed(allowed_origins or ""))
        for origin in self.origins:
            if origin != ANY and (not _server_of(origin) or urlsplit(origin)[2:] != ("", "", "")):
                raise ConfigurationError(
                    f"--allowed-origins: {origin!r} is no origin; one looks like https://example.com or "
                    "http://localhost:3000"
                )

    def check(self, headers: Headers) -> None:
        """Refuse what may not be.

        Raises:
            OriginRefusedError: the name or the page is not allowed.
        """
        host = headers.get("host", "")
        if host and not self._is_host_allowed(_without_port(host)):
            raise OriginRefusedError(
                f"this server does not answer to the name {shorten(host)!r}; --allowed-hosts lists the names it has"
            )
        origin = headers.get("origin")
        if origin is None or ANY in self.origins or origin in self.origins:
            return
        if _server_of(origin) != host.lower() or not host:
            raise OriginRefusedError(
                f"pages of {shorten(origin)!r} may not use this server; --allowed-origins lists those that may"
            )

    def _is_host_allowed(self, name: str) -> bool:
        if self._hosts is None or ANY in self._hosts or _is_address(name):
            return True  # an address is no name that anybody could point here
        name = name.lower().rstrip(".")
        parents = [name[place:] for place, char in enumerate(name) if char == "."]
        return name in self._hosts or any(ANY + parent in self._hosts for parent in parents)


class OriginGuard:
    """Lets nobody in who comes through a name or a page that is not allowed."""

    def __init__(self, app: ASGIApp, rules: OriginRules) -> None:
        self.app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            try:
                self._rules.check(Headers(scope=scope))
            except ChairliftError as error:
                await refusal(scope["path"], error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _listed(text: str) -> Iterable[str]:
    return (part.strip().rstrip("/") for part in text.split(",") if part.strip())


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _server_of(origin: str) -> str:
    """Name and port of an origin; empty if it is none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme else ""
