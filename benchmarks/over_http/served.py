"""Serves workloads with a real server and notes what a client sees.

Knows nothing of what is claimed.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx

from chairlift.simulator.logged_steps import read_steps
from chairlift.workload.items import WorkRequest, distinct_prompt

FIRST_ID = 1000
"""Prompts are made of so many ids from the first on."""
VOCAB_SIZE = 40_000
_NS_PER_S = 1e9
_START_TIMEOUT_S = 120


class Server:
    """A server of its own, on a free port, until the block ends; by default of the embedded model."""

    def __init__(self, settings: Mapping[str, object], flags: Sequence[str] = ()) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        given = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "chairlift", "serve", "--port", str(port), *given, *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def __enter__(self) -> "Server":
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health").status_code == httpx.codes.OK:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        self.__exit__()
        raise RuntimeError("the server did not start")

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        self._process.wait()


@dataclass(slots=True)
class Answer:
    """What came for one request. Seconds on one clock."""

    stream: int
    sent_s: float
    piece_times_s: list[float] = field(default_factory=list)
    """One per step that brought a token."""
    num_output_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """From sending to the first piece."""
        return self.piece_times_s[0] - self.sent_s


@dataclass(slots=True)
class Served:
    """What came for a workload."""

    start_s: float
    answers: list[Answer] = field(default_factory=list)
    duration_s: float = 0.0

    def of(self, stream: int) -> list[Answer]:
        """Answers of one stream that have begun."""
        return [answer for answer in self.answers if answer.stream == stream and answer.piece_times_s]


def request_body(request: WorkRequest, number: int) -> dict[str, object]:
    """A greedy completion of exactly so many tokens; the prompt is given as token ids."""
    prompt = [FIRST_ID + token for token in distinct_prompt(request, number, VOCAB_SIZE)]
    body: dict[str, object] = {"prompt": prompt, "max_tokens": request.num_output_tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    if request.tier is not None:
        body["priority"] = request.tier
    return body


async def send(client: httpx.AsyncClient, url: str, body: Mapping[str, object], answer: Answer, tenant: str) -> None:
    """Send one request and note when its pieces come."""
    answer.sent_s = time.perf_counter()
    headers = {"x-tenant": tenant} if tenant else {}
    async with client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now_s = time.perf_counter()
            event = json.loads(line.removeprefix("data: "))
            if event.get("usage"):
                answer.num_output_tokens += event["usage"]["completion_tokens"]
            if event.get("choices"):
                answer.piece_times_s.append(now_s)


async def serve(url: str, requests: Sequence[WorkRequest], *, until_stream_ends: int | None = None) -> Served:
    """Send every request at its time, and wait for all answers.

    With ``until_stream_ends``, the answers of that stream are waited for, and the rest is cancelled then.
    """
    served = Served(time.perf_counter())
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:

        async def send_in_time(number: int, request: WorkRequest) -> None:
            body = request_body(request, number)
            answer = Answer(request.stream, 0.0)
            await asyncio.sleep(max(0.0, request.arrival_ns / _NS_PER_S - (time.perf_counter() - served.start_s)))
            served.answers.append(answer)
            await send(client, url, body, answer, request.tenant or "")

        tasks = [asyncio.create_task(send_in_time(number, request)) for number, request in enumerate(requests)]
        waited_for = [
            task
            for task, request in zip(tasks, requests, strict=True)
            if until_stream_ends is None or request.stream == until_stream_ends
        ]
        await asyncio.gather(*waited_for)
        served.duration_s = time.perf_counter() - served.start_s
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    return served


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
    return FullSteps(full[len(full) // 2] / _NS_PER_S, full[-1] / _NS_PER_S)
