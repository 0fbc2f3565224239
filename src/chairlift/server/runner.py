"""The life of a serving process: bind, load, serve, drain, leave. Knows nothing of what is served.

::

    bind ──> engine.start ──> serving ──first signal──> draining ──all ended or timeout──> exit 0
                 │                                         └──second signal──> all aborted, exit at once, status 1
                 └──signal──> exit 0

While draining the socket stays open: new requests are answered 503 with Retry-After instead of being cut off.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import uvicorn

from chairlift.config.sections import ServerSettings
from chairlift.errors import ConfigurationError
from chairlift.server.access import Access
from chairlift.server.announce import base_url, is_loopback, ready_text
from chairlift.server.app import create_app
from chairlift.server.batches.api import Batches
from chairlift.server.collector import FullCollections
from chairlift.server.context import WebSections
from chairlift.server.engine_port import ManagedEngine
from chairlift.server.tools.table import find_parser_problem

logger = logging.getLogger(__name__)

_OTHER_FILES = 256
"""Files that the process has open beside connections, at most."""
_SWITCH_INTERVAL_S = 0.001
_ACCEPTS_PER_TURN = 16
"""How many new connections one turn of the event loop takes, at most."""
_FILES_PER_ACCEPT = 32
"""Files that the process may open, for each of them."""
_LAST_WORDS_S = 5
"""Seconds that answers get to leave the socket once the engine has stopped."""
_LAST_MOMENT_S = 0.3
"""The same after a second signal."""


def run_server(
    make_engine: Callable[[], ManagedEngine],
    settings: ServerSettings,
    access: Access,
    say: Callable[[str], None],
    sections: WebSections | None = None,
) -> int:
    """Serve until a signal ends it.

    Args:
        make_engine: called in the event loop that the engine will live in.
        settings: the server's section.
        access: who may ask for what.
        say: given the address and the line to try, once requests are served.
        sections: limits and the like; the defaults if absent.

    Returns:
        The process's exit status.

    Raises:
        ConfigurationError: the address cannot be listened on.
        ChairliftError: the engine could not start.
    """
    listener = bind(settings.host, settings.port)
    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()
    web = _Web(settings, access, sections or WebSections())
    allow_open_files(web.sections.connections.max_connections)
    # Worker threads give Python's lock back sooner to the event loop, which is what others wait for.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with listener, asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_Service(make_engine(), web, listener, say).run())


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that a port in use shows before a model is loaded.

    Raises:
        ConfigurationError: the address is unknown or taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigurationError(f"cannot listen on --host {host} --port {port}: {error.strerror}") from None
    return listener


def accepting_sockets(listener: socket.socket) -> list[socket.socket]:
    """The listener, several times over.

    libuv accepts one connection per turn of the loop and descriptor. A turn that also writes to every stream takes
    milliseconds, so a single descriptor would take a few hundred connections per second, however idle the processor,
    and let the others wait in the kernel's queue until it is full. (asyncio's own loops take as many as there are.)
    """
    try:
        import resource
    except ImportError:  # Windows, whose loops are asyncio's
        return [listener]
    max_open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_bounded = max_open_files != resource.RLIM_INFINITY
    # Who may open few files needs them for connections.
    count = min(_ACCEPTS_PER_TURN, max(1, max_open_files // _FILES_PER_ACCEPT)) if is_bounded else _ACCEPTS_PER_TURN
    return [listener, *(listener.dup() for _ in range(count - 1))]


def allow_open_files(max_connections: int) -> None:
    """Raise this process's limit of open files to what so many connections need, as far as it may be raised."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable < wanted:
        logger.warning(
            "this process may open %d files, fewer than --max-connections %d needs; ulimit -n raises it",
            reachable,
            max_connections,
        )


class _Web(NamedTuple):
    settings: ServerSettings
    access: Access
    sections: WebSections

    def protocol(self) -> Any:
        """What speaks HTTP on a connection, as uvicorn takes it."""
        try:
            from chairlift.server.http_protocol import guarded_protocol
        except ImportError:  # without httptools, as on Windows
            logger.warning("httptools is not installed: headers and slow readers have no limits")
            return "auto"
        return guarded_protocol(self.sections.connections)


class _HttpServer(uvicorn.Server):
    """uvicorn, but signals are the service's, and it says when it accepts connections."""

    def __init__(self, config: uvicorn.Config, when_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_ready = when_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def cut_off(self) -> None:
        """Close every connection, whatever is on its way."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._when_ready()


class _Service:
    """One run of the state machine drawn above."""

    def __init__(
        self,
        engine: ManagedEngine,
        web: _Web,
        listener: socket.socket,
        say: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._settings = web.settings
        self._access = web.access
        self._tool_call_parser = web.sections.answers.tool_call_parser
        self._listener = listener
        self._say = say
        self._stop_wanted = asyncio.Event()
        self._force_wanted = asyncio.Event()
        app = create_app(engine, web.settings, web.access, web.sections)
        self._batches: Batches | None = app.state.batches
        config = uvicorn.Config(
            app,
            http=web.protocol(),
            ws="none",
            h11_max_incomplete_event_size=web.sections.connections.max_header_bytes,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
        self._http = _HttpServer(config, self._announce)

    async def run(self) -> int:
        """Live once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        _share_log_handlers(self._settings.log_level)
        stopping = asyncio.ensure_future(self._stop_when_wanted())
        beside = [stopping, asyncio.ensure_future(self._give_up_when_wanted(stopping))]
        try:
            if await self._start_engine():
                if self._batches is not None:
                    beside.append(asyncio.ensure_future(self._batches.runner.run()))
                beside.append(asyncio.ensure_future(FullCollections().run()))
                await self._http.serve(sockets=accepting_sockets(self._listener))
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._engine.stop(0.0, in_hurry=self._force_wanted.is_set())
        logger.info("the server has stopped")
        return 1 if self._force_wanted.is_set() else 0

    async def _start_engine(self) -> bool:
        starting = asyncio.ensure_future(self._engine.start())
        stopped = asyncio.ensure_future(self._stop_wanted.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if starting.done():
            starting.result()
            return not self._stop_wanted.is_set()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False

    def _announce(self) -> None:
        problem = find_parser_problem(self._tool_call_parser, self._engine.tokenizer.chat_template_text)
        if problem is not None:
            logger.warning("%s", problem)
        host, port = self._listener.getsockname()[:2]
        has_key = self._access.needs_key
        if not has_key and not is_loopback(host):
            logger.warning(
                "NO API KEY IS NEEDED, and other machines can reach %s port %d: whoever does may use this server. "
                "Set --api-key (CHAIRLIFT_API_KEY) or --tenants, or listen on 127.0.0.1",
                host,
                port,
            )
        if self._batches is not None and self._access.trusts_user_alone:
            logger.warning(
                "--trust-user with --batch-dir: requests for files and batches name their user in the address, as "
                "/v1/files?user=NAME, and those that name none share what they keep; or set --tenant-header"
            )
        model, url = self._engine.model_info.name, base_url(host, port)
        self._say(ready_text(model, url, needs_key=has_key, is_tenants_key=self._access.needs_tenants_key))

    def _on_signal(self, number: int) -> None:
        if self._stop_wanted.is_set():
            logger.warning("%s again: stopping at once", signal.Signals(number).name)
            self._force_wanted.set()
            return
        timeout_s = self._settings.shutdown_timeout
        logger.info("%s: no new requests, running ones get %g s to end", signal.Signals(number).name, timeout_s)
        self._stop_wanted.set()

    async def _stop_when_wanted(self) -> None:
        await self._stop_wanted.wait()
        try:
            await self._engine.stop(self._settings.shutdown_timeout)
        finally:
            self._http.should_exit = True

    async def _give_up_when_wanted(self, stopping: asyncio.Future[None]) -> None:
        """End what runs, each with its error; whoever has not read that in a moment is cut off."""
        await self._force_wanted.wait()
        self._http.force_exit = self._http.should_exit = True
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        ending = asyncio.ensure_future(self._engine.stop(0.0, in_hurry=True))
        await asyncio.wait((ending,), timeout=_LAST_MOMENT_S)
        self._http.cut_off()
        await ending


def _share_log_handlers(level: str) -> None:
    """Write uvicorn's warnings where Chairlift's lines go; what it says at start and end is for debugging.

    What is wrong with a form is told to whoever sent it, and is no matter for the log.
    """
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    uvicorn_logger = logging.getLogger("uvicorn")
    uvicorn_logger.handlers = list(logging.getLogger("chairlift").handlers)
    uvicorn_logger.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    uvicorn_logger.propagate = False
