"""The engine process: ``python -m chairlift.engine.process``, with its configuration on standard input.

Knows nothing of HTTP or text. Standard input stays open as long as the parent lives: when it closes, so does this
process, however the parent died.
"""

import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from chairlift.config.settings import Settings
from chairlift.engine.build import BuiltEngine, build_engine, locate_model
from chairlift.engine.loop import EngineLoop
from chairlift.engine.messages import EngineConfig, Failed, Outbound, Ready, decode_config, encode
from chairlift.engine.sockets import EngineSockets, remove_socket_dir
from chairlift.errors import ChairliftError, EngineUnavailableError
from chairlift.observability.logging import configure_logging

EXIT_OK = 0
EXIT_EXECUTOR_BROKE = 1
EXIT_START_FAILED = 2
EXIT_ORPHANED = 3

LENGTH_BYTES = 4
"""Before the configuration on standard input stands its length, big-endian."""

_PARENT_CHECK_S = 1.0

_logger = logging.getLogger(__name__)


def main() -> int:
    """Run an engine until it is told to stop, its executor breaks or its parent dies; return the exit status."""
    # A terminal's Ctrl-C and a service manager's SIGTERM reach every process; the parent decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    config = _read_config(sys.stdin.buffer)
    configure_logging(config.log_level, log_format=config.log_format)
    _exit_with_parent(Path(config.socket_dir))
    sockets = EngineSockets(config.inbound_address, config.outbound_address)
    try:
        return _run(config, sockets)
    finally:
        sockets.close()


def _run(config: EngineConfig, sockets: EngineSockets) -> int:
    def send(message: Outbound) -> None:
        sockets.send(encode(message))

    try:
        built = _build(config)
    except ChairliftError as error:
        send(Failed(type(error).__name__, error.message))
        return EXIT_START_FAILED
    except Exception as error:  # whatever it was, the parent must hear of it
        _logger.exception("the engine could not start")
        send(Failed(EngineUnavailableError.__name__, f"the engine could not start: {error!r}"))
        return EXIT_START_FAILED
    # What was loaded lives as long as the process. The collector must not walk through all of it between two steps.
    gc.collect()
    gc.freeze()
    send(Ready(built.runner.info))
    try:
        EngineLoop(built.runner, sockets.receive, send, time.monotonic_ns).run()
    except Exception as error:  # the executor may raise anything
        ids = built.runner.fail_all()
        _logger.exception("the executor failed; %d requests end with an error", len(ids))
        send(Failed(EngineUnavailableError.__name__, f"the engine's executor failed: {error!r}"))
        return EXIT_EXECUTOR_BROKE
    finally:
        built.close_log()
    built.executor.close()
    return EXIT_OK


def _build(config: EngineConfig) -> BuiltEngine:
    settings = Settings(
        model=config.model,
        cache=config.cache,
        scheduler=config.scheduler,
        policy=config.policy,
        queue=config.queue,
        answers=config.answers,
    )
    return build_engine(settings, locate_model(settings), tenants=config.tenants, decision_log=config.decision_log)


def _read_config(stream: BinaryIO) -> EngineConfig:
    length = int.from_bytes(stream.read(LENGTH_BYTES), "big")
    try:
        return decode_config(stream.read(length))
    except msgspec.DecodeError as error:
        raise SystemExit(f"standard input holds no engine configuration: {error}") from error


def _exit_with_parent(socket_dir: Path) -> None:
    """Watch the parent from a thread: nothing else notices its death while a step runs."""
    parent_id = os.getppid()
    stdin_fd = sys.stdin.fileno()

    def watch() -> None:
        while os.getppid() == parent_id:
            readable, _, _ = select.select([stdin_fd], [], [], _PARENT_CHECK_S)
            if readable and not os.read(stdin_fd, 1):
                break
        remove_socket_dir(socket_dir)
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
