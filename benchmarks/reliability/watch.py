"""Looks at a server from outside: its memory, API process and engine, and whether its counters add up.

Knows nothing of the load.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path

import httpx


class Memory:
    """Resident memory of processes, sampled for as long as it is watched.

    Args:
        pids: by name. None of them may end meanwhile, so an engine that is killed cannot be among them.
        every_s: how often.
    """

    def __init__(self, pids: Mapping[str, int], every_s: float = 1.0) -> None:
        self._pids, self._every_s = dict(pids), every_s
        self.samples_mib: dict[str, list[float]] = {name: [] for name in pids}

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            for name, pid in self._pids.items():
                self.samples_mib[name].append(resident_mib(pid))
            await asyncio.sleep(self._every_s)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator["Memory", None]:
        """Sample while this is open."""
        task = asyncio.create_task(self.watch())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def growth_mib(self) -> dict[str, float]:
        """By name: how much the last quarter is above the second one, since in the first a server warms up."""
        return {name: round(_growth(samples), 1) for name, samples in self.samples_mib.items()}

    @property
    def last_mib(self) -> dict[str, int]:
        """By name: how much there was in the end."""
        return {name: round(samples[-1]) for name, samples in self.samples_mib.items()}

    def grew_at_most(self, most_mib: float) -> bool:
        """Whether no process grew by more."""
        return max(self.growth_mib.values()) < most_mib


def _growth(samples: Sequence[float]) -> float:
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    return sum(last) / len(last) - sum(second) / len(second) if second else 0.0


def server_pids(pid: int) -> dict[str, int]:
    """The API process, and the engine that it has now."""
    engine = engine_pid(pid)
    return {"api": pid, **({} if engine is None else {"engine": engine})}


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Shares:
    """How much of a core each process of a run had since this was made."""

    def __init__(self, pid: int) -> None:
        self._pids = {"client": os.getpid(), **server_pids(pid)}
        self._start_s = time.monotonic()
        self._before_s = {name: cpu_s(number) for name, number in self._pids.items()}

    @property
    def cores(self) -> dict[str, float]:
        """By name of the process."""
        passed_s = time.monotonic() - self._start_s
        return {
            name: round((cpu_s(number) - self._before_s[name]) / passed_s, 2) for name, number in self._pids.items()
        }


def engine_pid(pid: int) -> int | None:
    """The engine: the server's only child, if there is one now."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def metrics(url: str) -> dict[str, float]:
    """All samples of Chairlift's own series, labels as they stand."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return {name: float(value) for name, value in _samples(text)}


def _samples(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith("chairlift_"):
            name, _, value = line.rpartition(" ")
            yield name.removeprefix("chairlift_"), value


def faults(found: dict[str, float]) -> list[str]:
    """What does not add up in a server that has nothing to do."""
    finished = sum(value for name, value in found.items() if name.startswith("requests_finished_total{"))
    wrong = [f"{name} is {value}" for name, value in found.items() if value < 0]
    wrong += [
        f"{name} is {found[name]}, and nothing runs"
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "swap_space_usage_ratio")
        if found[name]
    ]
    if found["requests_received_total"] != finished:
        wrong.append(f"{found['requests_received_total']:.0f} received, {finished:.0f} ended")
    return wrong


async def until_idle(url: str, within_s: float = 30.0) -> dict[str, float]:
    """Wait until the server has nothing to do, or as long as that may take; its metrics then."""
    end_s = asyncio.get_running_loop().time() + within_s
    while True:
        found = await asyncio.to_thread(metrics, url)
        is_up = found.get("engine_up") == 1
        if (is_up and not faults(found)) or asyncio.get_running_loop().time() > end_s:
            return found
        await asyncio.sleep(0.2)
