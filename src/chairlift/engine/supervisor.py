"""Keeps an engine process running: starts it, notices when it dies or hangs, and starts it again.

Knows nothing of requests: whoever has some is told when they are lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from chairlift.config.resolved import TenantTable
from chairlift.config.settings import Settings
from chairlift.engine.connection import EngineConnection
from chairlift.engine.messages import Failed, Inbound, ModelInfo, Outbound, Ping, Pong, Ready, StepDone
from chairlift.engine.remote_errors import named_error
from chairlift.engine.sockets import make_socket_dir, remove_socket_dir
from chairlift.engine.turns import Turns
from chairlift.engine.watchdog import Watchdog
from chairlift.errors import ChairliftError, EngineDiedError, EngineDownError, EngineUnavailableError

_LAST_WORDS_S = 0.1
_END_TIMEOUT_S = 5.0
_HURRIED_END_TIMEOUT_S = 0.3
_NS_PER_S = 1e9

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class Backoff:
    """Pauses between restarts: none after a long life, then doubling up to a limit."""

    def __init__(self, first_s: float = 0.5, limit_s: float = 30.0, long_life_s: float = 60.0) -> None:
        self._first_s, self._limit_s, self._long_life_s = first_s, limit_s, long_life_s
        self._next_s = 0.0

    def next_pause_s(self, lifetime_s: float) -> float:
        """Return how long to wait after a process that served for so long."""
        pause_s = 0.0 if lifetime_s >= self._long_life_s else self._next_s
        self._next_s = min(max(pause_s * 2, self._first_s), self._limit_s)
        return pause_s


class EngineListener(Protocol):
    """Who is told what the engine says and how it fares. Called in the event loop; must not block."""

    def engine_ready(self, info: ModelInfo, *, is_restart: bool) -> None:
        """An engine process serves; it knows of no request yet."""
        ...

    def engine_said(self, message: Outbound) -> None:
        """A message came."""
        ...

    def engine_lost(self, error: ChairliftError) -> None:
        """The process is gone, and all requests with it. Not called for one that never was ready."""
        ...


class Supervisor:
    """Runs engine processes one after the other.

    Args:
        settings: what each of them is told.
        listener: who hears of it.
        tenants: what each tenant may have, which each of them is told too.
        backoff: pauses between restarts.
    """

    def __init__(
        self,
        settings: Settings,
        listener: EngineListener,
        tenants: TenantTable | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._settings = settings
        self._tenants = tenants or TenantTable()
        self._listener = listener
        self._backoff = backoff or Backoff()
        self._socket_dir: Path | None = None
        self._generation = 0
        self._connection: EngineConnection | None = None
        self._watchdog = Watchdog(settings.server.watchdog_timeout)
        self._has_pinged = False
        self._fault: str | None = None
        self._is_ready = False
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent."""
        return self._is_ready

    @property
    def process_id(self) -> int | None:
        """Process id of the engine that serves now; ``None`` if none does."""
        return self._connection.process.pid if self._connection is not None and self._is_ready else None

    async def start(self) -> None:
        """Start the first engine and wait until it is ready; from then on keep one running.

        Raises:
            ModelLoadError, ConfigurationError: the engine cannot start like this.
            EngineUnavailableError: it died on its way.
        """
        self._socket_dir = make_socket_dir()
        try:
            connection = await self._launch(self._socket_dir)
        except BaseException:
            self._remove_socket_dir()
            raise
        self._task = asyncio.create_task(self._keep_running(connection, self._socket_dir))

    def send(self, message: Inbound) -> None:
        """Send a message to the engine.

        Raises:
            EngineDownError: none is ready.
        """
        if self._connection is None or not self._is_ready:
            raise EngineDownError("the engine process is down; it is being started again")
        self._connection.send(message)

    async def stop(self, *, in_hurry: bool = False) -> None:
        """End the engine process. What still runs in it is lost.

        In a hurry the step that runs is not waited for, unless the process writes a log that would end too early.
        """
        self._is_stopping = True
        if self._connection is not None and self._is_ready:
            may_kill = in_hurry and self._settings.server.decision_log is None
            await self._connection.end(_HURRIED_END_TIMEOUT_S if may_kill else _END_TIMEOUT_S)
        elif self._task is not None:
            self._task.cancel()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._remove_socket_dir()

    def _remove_socket_dir(self) -> None:
        if self._socket_dir is not None:
            remove_socket_dir(self._socket_dir)
            self._socket_dir = None

    async def _launch(self, socket_dir: Path) -> EngineConnection:
        """Start the next generation and wait until it is ready."""
        self._generation += 1
        self._watchdog = Watchdog(self._settings.server.watchdog_timeout)
        self._has_pinged, self._fault = False, None
        connection = await EngineConnection.launch(self._settings, self._tenants, socket_dir, self._generation)
        try:
            async with self._watched(connection):
                message = await _until_exit(connection, connection.receive())
            if isinstance(message, Failed):
                raise named_error(message.error)(message.message)
            if not isinstance(message, Ready):
                status = connection.process.returncode
                raise EngineUnavailableError(f"the engine process died at its start (exit status {status})")
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self._is_ready = True
        self._listener.engine_ready(message.info, is_restart=self._generation > 1)
        return connection

    async def _keep_running(self, connection: EngineConnection, socket_dir: Path) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            try:
                async with self._watched(connection):
                    failure = await _until_exit(connection, self._listen(connection))
            finally:
                self._is_ready = False
                self._connection = None
                await connection.close()
            if self._is_stopping:
                return
            status = connection.process.returncode
            reason = self._fault or f"the engine process died (exit status {status})"
            if failure is not None:
                reason = failure.message
            _logger.error("%s; it will be started again", reason)
            self._listener.engine_lost(EngineDiedError(reason))
            connection = await self._relaunch(socket_dir, loop.time() - started_s)

    async def _relaunch(self, socket_dir: Path, lifetime_s: float) -> EngineConnection:
        while True:
            await asyncio.sleep(self._backoff.next_pause_s(lifetime_s))
            try:
                return await self._launch(socket_dir)
            except Exception as error:  # noqa: BLE001 - whatever is short now, such as files, may be there later
                _logger.error("the engine could not be started again: %s", error)
                lifetime_s = 0.0

    @contextlib.asynccontextmanager
    async def _watched(self, connection: EngineConnection) -> AsyncGenerator[None, None]:
        """Kill the process if it hangs while this is open."""
        watching = asyncio.create_task(self._watch(connection)) if self._settings.server.watchdog_timeout else None
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, connection: EngineConnection) -> None:
        watchdog = self._watchdog
        while self._fault is None:
            await asyncio.sleep(watchdog.look_every_s)
            # One that loads a model answers nothing, however long it takes.
            self._fault = watchdog.look(is_stopped=connection.is_stopped, is_asked=self._has_pinged)
            if self._is_ready and not self._has_pinged:
                with contextlib.suppress(EngineUnavailableError):
                    connection.send(Ping())
                    self._has_pinged = True
        connection.kill()

    def _note(self, message: Outbound) -> None:
        self._watchdog.heard()
        if isinstance(message, Pong):
            self._has_pinged = False
        elif isinstance(message, StepDone):
            self._watchdog.stepped(message.stats.duration_ns / _NS_PER_S)

    async def _listen(self, connection: EngineConnection) -> Failed:
        """Pass on what the engine says until it says that it failed."""
        turns = Turns(asyncio.get_running_loop().time)
        while True:
            message = await connection.receive()
            if isinstance(message, Failed):
                return message
            self._note(message)
            try:
                if not isinstance(message, Pong):
                    self._listener.engine_said(message)
            except Exception:  # a message that could not be dealt with must not end those that follow
                _logger.exception("a message from the engine could not be dealt with")
            # Messages that are there already are received without yielding; others want the loop too. Where they pile
            # up, some are taken in one turn, so that each reader gets the tokens of several steps at once: the less
            # time there is, the less each token costs. What the engine says of its queues must not get old while
            # clients that are to be refused keep the loop busy.
            await turns.pause_if_over()


async def _until_exit(connection: EngineConnection, talk: Coroutine[Any, Any, _T]) -> _T | None:
    """Await ``talk``, but no longer than the process lives and its last words take to arrive."""
    talking = asyncio.create_task(talk)
    exiting = asyncio.create_task(connection.process.wait())
    try:
        await asyncio.wait({talking, exiting}, return_when=asyncio.FIRST_COMPLETED)
        if not talking.done():
            await asyncio.wait({talking}, timeout=_LAST_WORDS_S)
        return talking.result() if talking.done() else None
    finally:
        for task in (talking, exiting):
            task.cancel()
        await asyncio.gather(talking, exiting, return_exceptions=True)
