"""Ten times as many requests as fit: those that are taken are served as fast as ever, the others told when to return.

    python -m benchmarks.reliability.overload --seconds 300

First the capacity is measured with as many clients as there are slots, then requests come at a multiple of it,
whatever becomes of them. With the toy model the processors are what there is too little of, and the client takes its
part of them; with ``--step-ms`` or ``--executor torch``, which serves the embedded model, it is the steps that take the
time, as where a model is served.
"""

import argparse
import asyncio
import collections
import json
import sys
import time

import uvloop

from benchmarks.over_http.served import Server, ServerProcess
from benchmarks.reliability.client import Outcome, request
from benchmarks.reliability.streams import allow_open_files
from benchmarks.reliability.watch import Memory, Shares, faults, server_pids, until_idle

SLOTS = 16
OUTPUT_TOKENS = 200
SETTINGS = {"max_model_len": 2048, "log_level": "warning"}
MAX_GROWTH_MIB = 32.0
LEAST_GOODPUT = 0.9
CAPACITY_S = {"fake": 20.0, "torch": 60.0}
"""How long the capacity is measured."""


def body(number: int) -> dict[str, object]:
    """A request that takes a while."""
    return {"prompt": f"request {number}", "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True}


async def capacity(url: str, num_slots: int, seconds: float) -> float:
    """Requests per second that end while every slot has one."""
    num_done = 0
    end_s = time.monotonic() + seconds

    async def client(number: int) -> None:
        nonlocal num_done
        while time.monotonic() < end_s:
            outcome = await request(url, body(number))
            num_done += outcome.end == "done" and time.monotonic() < end_s

    await asyncio.gather(*map(client, range(num_slots)))
    return num_done / seconds


async def run(
    server: ServerProcess, num_slots: int, factor: float, seconds: float, capacity_s: float
) -> dict[str, object]:
    """Measure the capacity for some seconds, then send a multiple of it."""
    shares = Shares(server.pid)
    peak_per_s = await capacity(server.url, num_slots, min(capacity_s, seconds))
    cores_at_peak = shares.cores
    outcomes: list[Outcome] = []
    num_in_time = 0
    tasks: set[asyncio.Task[None]] = set()
    start_s = time.monotonic()
    shares = Shares(server.pid)

    async def one(number: int) -> None:
        nonlocal num_in_time
        outcome = await request(server.url, body(number))
        outcomes.append(outcome)
        num_in_time += outcome.end == "done" and time.monotonic() < start_s + seconds

    memory = Memory(server_pids(server.pid))
    async with memory.watching():
        number = 0
        while (now_s := time.monotonic() - start_s) < seconds:
            while number < now_s * factor * peak_per_s:
                task = asyncio.create_task(one(number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(0.005)
        cores, num_open = shares.cores, len(tasks)
        await asyncio.gather(*tasks)
    found = await until_idle(server.url)
    refusals_s = sorted(outcome.duration_s for outcome in outcomes if outcome.end == "refused")
    ends = collections.Counter(f"{outcome.status} {outcome.end}" for outcome in outcomes)
    goodput_per_s = num_in_time / seconds
    refused = [outcome for outcome in outcomes if outcome.end == "refused"]
    return {
        "factor": factor,
        "seconds": seconds,
        "capacity_per_s": round(peak_per_s, 2),
        "goodput_per_s": round(goodput_per_s, 2),
        "goodput_ratio": round(goodput_per_s / peak_per_s, 3),
        "ends": dict(ends),
        "refusal_p50_ms": round(1000 * refusals_s[len(refusals_s) // 2], 1) if refusals_s else None,
        "open_at_the_end": num_open,
        "cores_at_peak": cores_at_peak,
        "cores": cores,
        "refused_without_retry_after": sum(not outcome.has_retry_after for outcome in refused),
        "memory_growth_mib": memory.growth_mib,
        "faults": faults(found),
        "is_ok": goodput_per_s >= LEAST_GOODPUT * peak_per_s
        and set(ends) <= {"200 done", "503 refused"}
        and all(outcome.has_retry_after for outcome in refused)
        and memory.grew_at_most(MAX_GROWTH_MIB)
        and not faults(found),
    }


def main() -> int:
    """Print one JSON line; the status is 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--executor", choices=sorted(CAPACITY_S), default="fake")
    parser.add_argument("--step-ms", type=float, default=0.0, help="what a step of the toy model takes at least")
    parser.add_argument("--slots", type=int, default=SLOTS)
    given = parser.parse_args()
    allow_open_files(4096)
    own = {"executor": given.executor, "max_num_seqs": given.slots, "max_num_queued_reqs": 2 * given.slots}
    if given.step_ms:
        own["fake_step_ms"] = given.step_ms
    with Server({**SETTINGS, **own}) as server:
        # The client shares the machine with the server, so it had better be cheap.
        result = uvloop.run(run(server, given.slots, given.factor, given.seconds, CAPACITY_S[given.executor]))
    print(json.dumps({**own, **result}))
    return 0 if result["is_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
