"""Serves workloads with a real server and takes down what a client sees.

Knows nothing of what is claimed. The client is that of ``chairlift bench serve``.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from chairlift.benchmark.calls import Load, PromptMaker
from chairlift.benchmark.client import Client
from chairlift.benchmark.clock import NS_PER_S, SystemClock
from chairlift.benchmark.connections import Connections
from chairlift.benchmark.prompts import MadePrompts
from chairlift.benchmark.records import CallRecord
from chairlift.benchmark.runner import FinishedRun, LoadRunner
from chairlift.benchmark.wire import Wire
from chairlift.config.model_source import EMBEDDED_MODEL_NAME
from chairlift.simulator.logged_steps import read_steps
from chairlift.workload.lengths import VOCAB_SIZE
from chairlift.workload.streams import Workload

WIRE = Wire(is_chat=False, model=EMBEDDED_MODEL_NAME, ignores_eos=True, has_tiers=True)
"""Greedy completions of exactly so many tokens, of the embedded model."""
TIMEOUT_S = 3600.0
"""The longest pause of an answer: a request may wait for long where one order is compared with another."""
_START_TIMEOUT_S = 120
_POLL_S = 0.05


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class ServerProcess:
    """A server, until the block ends.

    Args:
        command: starts it.
        port: where it listens.
        timeout_s: how long it may take to be healthy.
        environment: instead of this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        timeout_s: float = _START_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.ready_s = 0.0
        """Seconds from the command to its first sign of health."""
        self._timeout_s = timeout_s
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)

    @property
    def pid(self) -> int:
        """The process that answers; engines may be its children."""
        return self._process.pid

    def __enter__(self) -> "ServerProcess":
        while time.monotonic() < self._started_s + self._timeout_s and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", verify=False).status_code == httpx.codes.OK:
                    self.ready_s = time.monotonic() - self._started_s
                    return self
            except httpx.TransportError:
                pass
            time.sleep(_POLL_S)
        self.__exit__()
        raise RuntimeError("the server did not start")

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()


class Server(ServerProcess):
    """Chairlift's server on a free port; by default of the embedded model."""

    def __init__(self, settings: Mapping[str, object], flags: Sequence[str] = ()) -> None:
        port = free_port()
        given = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        super().__init__([sys.executable, "-m", "chairlift", "serve", "--port", str(port), *given, *flags], port)


class _EndOfStream:
    """Sets an event when so many requests of one stream have ended."""

    def __init__(self, stream: int, num_requests: int, event: asyncio.Event) -> None:
        self._stream = stream
        self._num_left = num_requests
        self._event = event

    def sent(self, record: CallRecord) -> None:
        """Take no notice."""

    def ended(self, record: CallRecord) -> None:
        """Count it."""
        self._num_left -= record.stream == self._stream
        if self._num_left == 0:
            self._event.set()


async def serve(
    url: str, workload: Workload, *, until_stream_ends: int | None = None, maker: PromptMaker | None = None
) -> FinishedRun:
    """Send every request at its time, and wait for all answers.

    With ``until_stream_ends``, the answers of that stream are waited for, and the rest is given up then. Prompts are
    random unless ``maker`` makes them.

    Raises:
        RuntimeError: a request failed.
    """
    clock, stop = SystemClock(), asyncio.Event()
    observer = None
    if until_stream_ends is not None:
        num_requests = sum(request.stream == until_stream_ends for request in workload.arrivals())
        observer = _EndOfStream(until_stream_ends, num_requests, stop)
    load = Load(workload=workload, maker=maker or MadePrompts(vocab_size=VOCAB_SIZE), wire=WIRE)
    async with Connections(url, timeout_s=TIMEOUT_S) as http:
        finished = await LoadRunner(load, Client(http, WIRE, clock), clock, observer=observer).run(stop)
    waited_for = [one for one in finished.records if until_stream_ends in (None, one.stream)]
    failed = next((one for one in waited_for if not one.is_ok), None)
    if failed is not None:
        raise RuntimeError(f"{failed.error}: {failed.message}")
    return finished


def duration_s(finished: FinishedRun) -> float:
    """Seconds from the start to the end of the last answer."""
    return (finished.end_ns - finished.start_ns) / NS_PER_S


def ttft_s(record: CallRecord) -> float:
    """Seconds from sending to the first piece."""
    return record.ttft_ns / NS_PER_S


class FullSteps(NamedTuple):
    """How long the steps of a run took that used their budget of tokens, but for a few."""

    median_s: float
    longest_s: float


def full_steps(log: Path, budget_tokens: int, part: float = 0.95) -> FullSteps:
    """Read them from a decision log.

    Raises:
        RuntimeError: there are none.
    """
    entries = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    full = sorted(s.duration_ns for s in read_steps(entries).steps if s.shape.num_rows >= part * budget_tokens)
    if not full:
        raise RuntimeError(f"no step had {part * budget_tokens:.0f} tokens")
    return FullSteps(full[len(full) // 2] / NS_PER_S, full[-1] / NS_PER_S)
