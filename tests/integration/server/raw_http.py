"""Requests written byte by byte, and a look at how long the server keeps others waiting. Knows nothing of pytest."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from tests.integration.server.server_process import ServerProcess


class RawConnection:
    """A connection on which a test sends what no client library would."""

    def __init__(self, server: ServerProcess, *, receive_buffer_bytes: int | None = None) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.host = host
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(60)
        self._socket.connect((host, int(port)))

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def send_head(self, path: str, *headers: str, method: str = "POST") -> None:
        """Send the line and headers of a request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", *headers, "", ""]
        self.send("\r\n".join(lines).encode())

    def read(self, num_bytes: int = 65_536) -> bytes:
        """What came; empty at the end."""
        return self._socket.recv(num_bytes)

    def read_to_end(self) -> bytes:
        """All that comes until the server closes."""
        received = b""
        try:
            while block := self.read():
                received += block
        except ConnectionResetError:
            pass
        return received


class Heartbeat:
    """Asks for the smallest answer there is again and again, and notes how long each took."""

    def __init__(self, server: ServerProcess) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self.delays_s: list[float] = []

    def _beat(self) -> None:
        while not self._is_over.is_set():
            start_s = time.perf_counter()
            self._connection.request("GET", "/version")
            self._connection.getresponse().read()
            self.delays_s.append(time.perf_counter() - start_s)

    @classmethod
    @contextmanager
    def watching(cls, server: ServerProcess) -> Iterator["Heartbeat"]:
        """Beat for as long as this is open."""
        heartbeat = cls(server)
        heartbeat._thread.start()
        try:
            yield heartbeat
        finally:
            heartbeat._is_over.set()
            heartbeat._thread.join()
            heartbeat._connection.close()

    @property
    def worst_s(self) -> float:
        """The longest that one took."""
        return max(self.delays_s)
