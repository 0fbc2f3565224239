"""Two one-way ZeroMQ sockets between the processes, in a private folder.

Knows nothing of what is said over them.

::

    API process     PUSH ── <dir>/<generation>.in  ──> PULL     engine process
                    PULL <── <dir>/<generation>.out ── PUSH

The API process binds and the engine connects. Two sockets instead of one, because the API side sends synchronously and
receives asynchronously, which one ZeroMQ socket cannot do without losing wake-ups.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import zmq

from chairlift.engine.messages import MAX_MESSAGE_BYTES

_MAX_ADDRESS_BYTES = 90
"""A Unix socket's path may have about 107 bytes."""

_LINGER_MS = 2000


def make_socket_dir() -> Path:
    """Create a folder that only this user can enter (mode 0700)."""
    path = Path(tempfile.mkdtemp(prefix="chairlift-"))
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        return path
    path.rmdir()
    return Path(tempfile.mkdtemp(prefix="chairlift-", dir="/tmp"))


def socket_addresses(socket_dir: Path, generation: int) -> tuple[str, str]:
    """Return the addresses into the engine and out of it; never used before, because each generation has its own."""
    return f"ipc://{socket_dir / f'{generation}.in'}", f"ipc://{socket_dir / f'{generation}.out'}"


def remove_socket_dir(path: Path) -> None:
    """Remove the folder and what is left in it."""
    shutil.rmtree(path, ignore_errors=True)


def limit_messages(socket: "zmq.Socket[Any]") -> None:
    """Bound what the other side may send, and how long unsent messages keep a closing process."""
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)


class EngineSockets:
    """The engine's ends. Sending blocks while the API process is far behind, so that nothing piles up without bound."""

    def __init__(self, inbound_address: str, outbound_address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbound = self._context.socket(zmq.PULL)
        self._outbound = self._context.socket(zmq.PUSH)
        for socket in (self._inbound, self._outbound):
            limit_messages(socket)
        self._inbound.connect(inbound_address)
        self._outbound.connect(outbound_address)

    def receive(self, timeout_ms: int | None) -> bytes | None:
        """Return the next message; wait for it that long, for ever if ``None``."""
        if not self._inbound.poll(timeout_ms):
            return None
        return self._inbound.recv()

    def send(self, data: bytes) -> None:
        """Send a message."""
        self._outbound.send(data)

    def close(self) -> None:
        """Send what is still unsent, and close."""
        self._inbound.close(linger=0)
        self._outbound.close()
        self._context.term()
