"""Everything at once for a long time: clients that leave or send nonsense, changes of policy, an engine that is killed
or stopped. Afterwards nothing may be missing.

    python -m benchmarks.reliability.soak --seconds 1800
"""

import argparse
import asyncio
import collections
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import httpx

from benchmarks.over_http.served import Server, ServerProcess
from benchmarks.reliability.bad_bodies import bad_bodies
from benchmarks.reliability.client import Outcome, request
from benchmarks.reliability.streams import allow_open_files
from benchmarks.reliability.watch import Memory, engine_pid, faults, until_idle

ADMIN_KEY = "sk-soak-admin"
SETTINGS = {
    "executor": "fake",
    "max_num_seqs": 16,
    "max_model_len": 1024,
    "kv_cache_memory": "64MiB",
    "max_num_queued_reqs": 200,
    "watchdog_timeout": 3,
    "log_level": "error",
    "swap_space": "16MiB",
}
CHANGES = (
    {"scheduling_policy": "shortest"},
    {"scheduling_policy": "deadline"},
    {"scheduling_policy": "lpm"},
    {"scheduling_policy": "preemptive", "quantum_tokens": 16, "preemption_mode": "swap"},
    {"scheduling_policy": "fcfs", "tenant_order": "fair"},
    {"preemption_mode": "swap", "max_num_seqs": 4},
    {"preemption_mode": "tail", "max_num_seqs": 16},
    {"preemption_mode": "recompute", "admission": "optimistic"},
    {"admission": "reserve-full"},
    {"admission": "reserve-prompt", "guaranteed_share": 0.2},
)
MAX_GROWTH_MIB = 48.0


class Soak:
    """One run.

    Args:
        server: what is tried.
        seconds: for how long.
        seed: of everything that is drawn.
    """

    def __init__(self, server: ServerProcess, seconds: float, seed: int) -> None:
        self._server = server
        self._end_s = time.monotonic() + seconds
        self._seed = seed
        self.outcomes: list[tuple[str, Outcome]] = []
        self.events: collections.Counter[str] = collections.Counter()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._end_s

    async def run(self) -> None:
        """Let everybody do their worst until the time is over."""
        await asyncio.gather(
            *(self._client(number) for number in range(48)),
            *(self._nuisance(number) for number in range(4)),
            self._administrator(),
            self._killer(),
        )

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed} client {number}")
        for turn in itertools.count():
            if self._is_over:
                return
            body = {
                "prompt": [rng.randrange(256) for _ in range(rng.choice((1, 15, 16, 17, 100, 400)))],
                "max_tokens": rng.choice((1, 2, 30, 200, 500)),
                "n": rng.choice((1, 1, 1, 3)),
                "stream": rng.random() < 0.8,
                "priority": rng.choice((0, 0, -1, 3)),
                "ignore_eos": rng.random() < 0.8,
                "stop": ["zz"] if turn % 5 == 0 else None,
                "ttft_deadline_ms": rng.choice((None, None, None, 50, 2000)),
            }
            kind = rng.choice(("reads", "reads", "leaves", "leaves at once", "dawdles"))
            leave_after = {"leaves": rng.randrange(1, 20), "leaves at once": 0}.get(kind)
            pause_s = 0.05 if kind == "dawdles" else 0.0
            outcome = await request(self._server.url, body, leave_after_chunks=leave_after, pause_s=pause_s)
            self.outcomes.append((kind, outcome))
            if outcome.status in (0, 503):
                await asyncio.sleep(0.2)

    async def _nuisance(self, number: int) -> None:
        bodies: Iterator[tuple[str, bytes]] = bad_bodies(random.Random(f"{self._seed} nuisance {number}"))
        while not self._is_over:
            path, body = next(bodies)
            self.outcomes.append(("nonsense", await request(self._server.url, body, path=path)))
            await asyncio.sleep(0.02)

    async def _administrator(self) -> None:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=30) as http:
            for change in itertools.cycle(CHANGES):
                await asyncio.sleep(1.0)
                if self._is_over:
                    return
                try:
                    answer = await http.patch(f"{self._server.url}/admin/scheduler", json=change)
                    self.events[f"change {answer.status_code}"] += 1
                except httpx.TransportError:
                    self.events["change failed"] += 1

    async def _killer(self) -> None:
        signals = itertools.cycle((signal.SIGKILL, signal.SIGSTOP))
        while not self._is_over:
            await asyncio.sleep(10.0)
            pid = engine_pid(self._server.pid)
            if pid is None or self._is_over:
                continue
            number = next(signals)
            os.kill(pid, number)
            self.events[number.name] += 1


def judge(outcomes: list[tuple[str, Outcome]]) -> list[str]:
    """What clients saw that they must not see."""
    wrong: list[str] = []
    for kind, outcome in outcomes:
        if outcome.status >= 500 and outcome.status not in (503, 504):
            wrong.append(f"{kind}: {outcome.status}")
        elif kind == "nonsense" and outcome.status == 200 and outcome.end == "cut":
            wrong.append("nonsense: an answer without an end")
        elif kind in ("reads", "dawdles") and outcome.end == "cut":
            wrong.append(f"{kind}: {outcome.status} without an end after {outcome.num_chunks} chunks")
        elif outcome.status == 503 and not outcome.has_retry_after:
            wrong.append(f"{kind}: 503 without Retry-After")
    return wrong


async def run(server: ServerProcess, seconds: float, seed: int) -> dict[str, object]:
    """Run the soak, and look at what is left."""
    soak = Soak(server, seconds, seed)
    memory = Memory({"api": server.pid})  # engines are killed
    async with memory.watching():
        await soak.run()
    found = await until_idle(server.url, within_s=60)
    after = await request(server.url, {"prompt": "after", "max_tokens": 4, "ignore_eos": True})
    wrong = judge(soak.outcomes)
    ends = collections.Counter(f"{kind}: {outcome.status} {outcome.end}" for kind, outcome in soak.outcomes)
    return {
        "seconds": seconds,
        "seed": seed,
        "requests": len(soak.outcomes),
        "ends": dict(sorted(ends.items())),
        "events": dict(soak.events),
        "engine_restarts": found["engine_restarts_total"],
        "received": found["requests_received_total"],
        "finished": {
            name.partition('"')[2].rstrip('"}'): value
            for name, value in found.items()
            if name.startswith("requests_finished_total{") and value
        },
        "swapped_pages": sum(value for name, value in found.items() if name.startswith("swapped_pages_total{")),
        "memory_growth_mib": memory.growth_mib,
        "faults": faults(found),
        "wrong": dict(collections.Counter(wrong)),
        "is_ok": not wrong and not faults(found) and after.status == 200 and memory.grew_at_most(MAX_GROWTH_MIB),
    }


def main() -> int:
    """Print one JSON line; the status is 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    allow_open_files(1024)
    with Server({**SETTINGS, "admin_api_key": ADMIN_KEY}) as server:
        result = asyncio.run(run(server, given.seconds, given.seed))
    print(json.dumps(result))
    return 0 if result["is_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
