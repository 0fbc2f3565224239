"""One engine process as its parent sees it: started, talked to, waited for, ended.

Knows nothing of restarts or of what the messages mean.
"""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from chairlift.config.resolved import TenantTable
from chairlift.config.settings import Settings
from chairlift.engine.messages import (
    MAX_MESSAGE_BYTES,
    EngineConfig,
    Failed,
    Inbound,
    Outbound,
    Shutdown,
    decode_outbound,
    encode,
)
from chairlift.engine.process import LENGTH_BYTES
from chairlift.engine.sockets import limit_messages, socket_addresses
from chairlift.errors import EngineDownError, EngineUnavailableError, InvalidRequestError

_STDERR_FD = 2


class EngineConnection:
    """The sockets and the process of one generation; made by :meth:`launch`."""

    def __init__(self, settings: Settings, tenants: TenantTable, socket_dir: Path, generation: int) -> None:
        inbound_address, outbound_address = socket_addresses(socket_dir, generation)
        self._config = EngineConfig(
            model=settings.model,
            cache=settings.cache,
            scheduler=settings.scheduler,
            policy=settings.policy,
            queue=settings.queue,
            answers=settings.answers,
            tenants=tenants,
            decision_log=settings.server.decision_log,
            socket_dir=str(socket_dir),
            inbound_address=inbound_address,
            outbound_address=outbound_address,
            log_level=settings.server.log_level,
            log_format=settings.observability.log_format,
        )
        self._context = zmq.asyncio.Context()
        self._outbox: zmq.Socket[bytes] = zmq.Context(self._context).socket(zmq.PUSH)
        self._inbox = self._context.socket(zmq.PULL)
        self._process: asyncio.subprocess.Process | None = None
        for socket, address in ((self._outbox, inbound_address), (self._inbox, outbound_address)):
            limit_messages(socket)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.bind(address)

    @classmethod
    async def launch(
        cls, settings: Settings, tenants: TenantTable, socket_dir: Path, generation: int
    ) -> "EngineConnection":
        """Start a process; it loads the model and then says :class:`~chairlift.engine.messages.Ready`.

        Raises:
            EngineUnavailableError: it died before it could read its configuration.
        """
        connection = cls(settings, tenants, socket_dir, generation)
        try:
            await connection._spawn()
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process."""
        if self._process is None:
            raise EngineUnavailableError("the engine process was not started")
        return self._process

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, as by SIGSTOP; never where the system does not tell (only Linux does)."""
        if self._process is None:
            return False
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return state.rpartition(")")[2].split()[:1] == ["T"]

    def send(self, message: Inbound) -> None:
        """Send a message without waiting; it may never arrive if the process dies.

        Raises:
            InvalidRequestError: the message is larger than messages may be.
            EngineDownError: nobody is connected.
        """
        data = encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise InvalidRequestError(
                f"the request takes {len(data)} bytes on its way to the engine, and {MAX_MESSAGE_BYTES} is the limit"
            )
        try:
            self._outbox.send(data, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise EngineDownError("the engine process is down") from error

    async def receive(self) -> Outbound:
        """Return the next message. One that cannot be read is returned as a failure of the engine."""
        data: Any = await self._inbox.recv()
        try:
            return decode_outbound(data)
        except msgspec.DecodeError as error:
            return Failed(EngineUnavailableError.__name__, f"the engine said something unreadable: {error}")

    async def end(self, timeout_s: float) -> None:
        """Ask the process to exit, and kill it if it has not within the time."""
        with contextlib.suppress(EngineUnavailableError):
            self.send(Shutdown())
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except TimeoutError:
            self.kill()

    async def close(self) -> None:
        """Kill the process if it still runs, and close the sockets, even if cancelled meanwhile."""
        process = self._process
        try:
            if process is not None:
                self.kill()
                await process.wait()
                if process.stdin is not None:
                    process.stdin.close()
                    with contextlib.suppress(ConnectionError):
                        await process.stdin.wait_closed()
        finally:
            self._outbox.close(linger=0)
            self._inbox.close(linger=0)
            self._context.term()

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _spawn(self) -> None:
        # A process group of its own, so that a terminal's Ctrl-C reaches the parent alone; and standard output, too,
        # belongs to the parent.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chairlift.engine.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=_STDERR_FD,
            start_new_session=True,
        )
        stdin = self._process.stdin
        if stdin is None:
            raise EngineUnavailableError("the engine process has no standard input")
        data = encode(self._config)
        try:
            # Left open: the process takes its end as the parent's death.
            stdin.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            await stdin.drain()
        except ConnectionError as error:
            raise EngineUnavailableError("the engine process died at its start") from error
