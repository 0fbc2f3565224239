"""Requests written byte by byte, and a look at how long the server keeps others waiting. Knows nothing of pytest."""

import http.client
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
    """Asks for the smallest answer there is again and again, and notes how long each took.

    What the server, or this client, waited for a processor that others had is told apart: it says nothing about the
    server.
    """

    def __init__(self, server: ServerProcess) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._server_id = server.process.pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self.delays_s: list[float] = []
        self.stalls_s: list[float] = []
        """Each delay without the waits for a processor."""

    def _beat(self) -> None:
        while not self._is_over.is_set():
            waited_s, start_s = self._waited_s(), time.perf_counter()
            self._connection.request("GET", "/version")
            self._connection.getresponse().read()
            self.delays_s.append(time.perf_counter() - start_s)
            self.stalls_s.append(self.delays_s[-1] - (self._waited_s() - waited_s))

    def _waited_s(self) -> float:
        """How long threads that an answer may depend on have waited for a processor: this one, the server's event
        loop, and the one that waited longest of those that may have had the interpreter's lock meanwhile."""
        server = Path(f"/proc/{self._server_id}/task")
        others = [_waited_s(task) for task in server.iterdir() if task.name != str(self._server_id)]
        own = Path(f"/proc/self/task/{threading.get_native_id()}")
        return _waited_s(own) + _waited_s(server / str(self._server_id)) + max(others, default=0.0)

    @classmethod
    @contextmanager
    def watching(cls, server: ServerProcess) -> Iterator["Heartbeat"]:
        """Beat for as long as this is open."""
        heartbeat, interval_s = cls(server), sys.getswitchinterval()
        sys.setswitchinterval(0.0005)  # or the one who sends would keep the beat from its turn
        heartbeat._thread.start()
        try:
            yield heartbeat
        finally:
            heartbeat._is_over.set()
            heartbeat._thread.join()
            heartbeat._connection.close()
            sys.setswitchinterval(interval_s)

    @property
    def worst_s(self) -> float:
        """The longest that one took."""
        return max(self.delays_s)

    @property
    def worst_stall_s(self) -> float:
        """The longest that one took beside the waits for a processor."""
        return max(self.stalls_s)


def _waited_s(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0  # it has ended, or the kernel does not tell
