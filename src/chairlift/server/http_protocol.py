"""What a connection may take before, beside and after its requests: headers, time, and room for answers.

Knows nothing of requests' meaning. uvicorn's protocol has no limit on headers, on the time until they are here, or on
clients that stop reading; these are added here::

    connected ──header_timeout──> headers ──> body ──> answer ──> (keep-alive: headers again)
                  431, 408          --body-timeout,      write_timeout without progress: cut off
                                    in server/body.py

What is refused here has the one answer that its connection gives it: requests before it are answered first, and an
answer that has begun is cut off, never mixed with another.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from chairlift.config.sections import ConnectionSettings
from chairlift.errors import ChairliftError, DrainingError, InvalidRequestError, OverloadedError
from chairlift.server.refusals import refusal

_LINGER_S = 2.0
"""How long the rest of a request may still come once it has its answer: who sends on may not have read it yet."""
_LAST_LINGER_S = 0.3
"""The same for a server that stops."""


class HeadersTooLargeError(InvalidRequestError):
    """Line and headers exceed ``--max-header-bytes``."""

    http_status = 431


class HeadersTimeoutError(InvalidRequestError):
    """Line and headers took longer than ``--header-timeout``."""

    http_status = 408


class _LingeringTransport:
    """A transport that closes in good order: not before the client has sent what it is sending.

    A socket that is closed with bytes unread resets the connection, and the client may lose an answer that it has not
    read yet, such as the 413 that tells it why.
    """

    def __init__(
        self, transport: asyncio.Transport, close: Callable[[], None], is_lingering: Callable[[], bool]
    ) -> None:
        self._transport, self._close, self._is_lingering = transport, close, is_lingering

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, unless this side has ended: then it is too late, and nobody's fault."""
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._close()

    def is_closing(self) -> bool:
        return self._is_lingering() or self._transport.is_closing()


class GuardedProtocol(HttpToolsProtocol):
    """One connection. :func:`guarded_protocol` makes a class of it with the settings."""

    settings: ConnectionSettings
    url = b""

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None
    _num_header_bytes = 0
    _is_in_headers = True
    _is_in_body = False
    _is_lingering = False
    _linger_s = _LINGER_S  # less for a server that stops
    _refusal: ChairliftError | None = None
    _is_refused = False
    _answering: RequestResponseCycle | None = None
    """The request that has its turn; later ones of this connection wait in ``pipeline``."""
    _socket: asyncio.Transport
    _num_unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room for one more."""
        if len(self.connections) >= self.settings.max_connections:
            self.transport = transport
            self._refuse(
                OverloadedError(
                    f"{len(self.connections)} connections are open, and --max-connections is "
                    f"{self.settings.max_connections}"
                )
            )
            return
        self._socket = transport
        lingering: Any = _LingeringTransport(transport, self._close, lambda: self._is_lingering)
        super().connection_made(lingering)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for timer in (self._header_timer, self._write_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        if self._answering is not None:  # uvicorn tells only the request that came last
            _disconnect(self._answering)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; what exceeds the limits is answered here, and the connection closed."""
        if self.parser is None or self._refusal is not None:
            return
        was_in_headers = self._is_in_headers
        super().data_received(data)
        if self._refusal is None and was_in_headers and self._is_in_headers:
            self._count_header_bytes(len(data))
        if self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._watch_idle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in the same form as every other refusal."""
        self._refuse(self._refusal or InvalidRequestError(msg))

    def on_message_begin(self) -> None:
        """The first byte of a request came."""
        super().on_message_begin()
        self._is_in_headers, self._is_in_body, self._num_header_bytes = True, False, 0
        if self._header_timer is None:
            self._await_headers()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._count_header_bytes(len(url), is_final=True)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer of a chunked body."""
        self._count_header_bytes(len(name) + len(value) + 4, is_final=True)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request begins."""
        self._is_in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        super().on_headers_complete()
        self._is_in_body = True
        if not self.pipeline:
            self._answering = self.cycle

    def on_message_complete(self) -> None:
        """All of the request is here."""
        self._is_in_body = False
        super().on_message_complete()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self._is_lingering:
            self._socket.close()

    def on_response_complete(self) -> None:
        """The answer is written; the next request has its turn. One of which more is to come must end soon."""
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is not None:
            self._answering = following
        elif self._is_refused and self._refusal is not None:
            self._write_refusal(self._refusal)
        elif self._is_in_body and self._linger_timer is None:
            self._await_last_bytes()

    def pause_writing(self) -> None:
        """The client reads more slowly than answers come; whoever writes them waits."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """The server stops: whose request is not all here yet is refused, and need not be waited for."""
        self._linger_s = _LAST_LINGER_S
        cycle = self._current_cycle
        if self._is_lingering:
            self._await_last_bytes()
        elif self._is_in_body and cycle is not None and not cycle.response_started:
            self._refuse(DrainingError("the server is shutting down"))
        else:
            super().shutdown()

    @property
    def _current_cycle(self) -> RequestResponseCycle | None:
        """The request that came last; uvicorn declares that there always is one."""
        return self.cycle

    @property
    def _asked_path(self) -> str:
        """Where the request goes, as far as its line is here."""
        return self.url.partition(b"?")[0].decode("latin-1")

    def _close(self) -> None:
        """Close; but if the client is still sending, only this side at first."""
        if self._is_lingering or self._socket.is_closing():
            return
        if not self._is_in_body and self._refusal is None:
            self._socket.close()
            return
        self._is_lingering = True
        self._await_last_bytes()
        self.flow.resume_reading()
        if self._socket.can_write_eof():
            self._socket.write_eof()

    def _await_last_bytes(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._linger_timer = self.loop.call_later(self._linger_s, self._socket.abort)

    def _watch_idle(self) -> None:
        """Bytes end the wait for a request although they need not begin one, such as an empty line."""
        cycle = self._current_cycle
        has_answered = cycle is not None and cycle.response_complete and not self._is_in_body
        is_watched = self._header_timer is not None or self.timeout_keep_alive_task is not None
        if has_answered and not is_watched and not self.transport.is_closing():
            self._await_headers()

    def _await_headers(self) -> None:
        timeout_s = self.settings.header_timeout
        self._header_timer = self.loop.call_later(timeout_s, self._headers_are_late)

    def _headers_are_late(self) -> None:
        self._header_timer = None
        cycle = self._current_cycle
        if self.transport.is_closing() or (cycle is not None and not cycle.response_complete):
            return
        if cycle is None and not self._num_header_bytes:
            self.transport.close()
            return
        self._refuse(
            HeadersTimeoutError(
                f"the request's headers did not come within {self.settings.header_timeout:g} s (--header-timeout)"
            )
        )

    def _count_header_bytes(self, num_bytes: int, *, is_final: bool = False) -> None:
        """Count bytes of headers: as the parser gives them, or else as they arrive while none is whole."""
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > self.settings.max_header_bytes:
            self._refusal = HeadersTooLargeError(
                f"the request's line and headers have at least {self._num_header_bytes} bytes, but --max-header-bytes "
                f"is {self.settings.max_header_bytes}"
            )
            if is_final:
                raise self._refusal

    def _watch_reader(self) -> None:
        self._num_unsent_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.settings.write_timeout, self._check_reader)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() >= self._num_unsent_bytes:
            self.transport.abort()  # closing would wait for it to read
        else:
            self._watch_reader()

    def _refuse(self, error: ChairliftError) -> None:
        """Answer without the application, in turn, and close."""
        self._refusal = error
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        refused = self._current_cycle if self._is_in_body else None
        if refused is not None and refused.response_complete:
            self.transport.close()
            return
        if refused is not None and self.pipeline:
            self.pipeline.popleft()
        elif refused is not None and not refused.response_started:
            _disconnect(refused)
        answering = self._answering
        if answering is None or answering.response_complete or answering.disconnected:
            self._write_refusal(error)
        elif answering.response_started:
            self._socket.abort()

    def _write_refusal(self, error: ChairliftError) -> None:
        if self.transport.is_closing():
            return
        response = refusal(self._asked_path, error)
        status = HTTPStatus(response.status_code)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode("latin-1")]
        lines += [name + b": " + value for name, value in response.raw_headers if name != b"connection"]
        self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", bytes(response.body)]))
        self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Let the application see that there is nobody anymore who would read its answer."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def guarded_protocol(settings: ConnectionSettings) -> Callable[..., asyncio.Protocol]:
    """The protocol's class for these settings, as uvicorn takes it."""
    made: Any = type("GuardedProtocol", (GuardedProtocol,), {"settings": settings})
    return made
