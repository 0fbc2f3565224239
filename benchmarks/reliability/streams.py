"""1,000 streams at a time on the toy model: no error, and memory stays where it is.

python -m benchmarks.reliability.streams --seconds 60
"""

import argparse
import asyncio
import collections
import json
import resource
import sys
import time

from benchmarks.over_http.served import Server, ServerProcess
from benchmarks.reliability.client import Outcome, request
from benchmarks.reliability.watch import Memory, faults, server_pids, until_idle

MAX_GROWTH_MIB = 32.0


async def run(server: ServerProcess, num_streams: int, seconds: float) -> dict[str, object]:
    """Keep so many streams open until the time is over."""
    outcomes: list[Outcome] = []
    end_s = time.monotonic() + seconds

    async def keep_open(number: int) -> None:
        turn = 0
        while time.monotonic() < end_s:
            prompt = f"stream {number} turn {turn}"
            body = {"prompt": prompt, "max_tokens": 100, "ignore_eos": True, "stream": True}
            outcomes.append(await request(server.url, body))
            turn += 1

    memory = Memory(server_pids(server.pid))
    async with memory.watching():
        await asyncio.gather(*map(keep_open, range(num_streams)))
    found = await until_idle(server.url)
    ends = collections.Counter(f"{outcome.status} {outcome.end}" for outcome in outcomes)
    return {
        "streams": num_streams,
        "seconds": seconds,
        "requests": len(outcomes),
        "tokens_per_s": round(sum(outcome.num_chunks for outcome in outcomes) / seconds),
        "ends": dict(ends),
        "memory_mib": memory.last_mib,
        "memory_growth_mib": memory.growth_mib,
        "faults": faults(found),
        "is_ok": set(ends) == {"200 done"} and memory.grew_at_most(MAX_GROWTH_MIB) and not faults(found),
    }


def main() -> int:
    """Print one JSON line; the status is 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    allow_open_files(given.streams)
    with Server({"executor": "fake", "max_num_seqs": 256, "log_level": "warning"}) as server:
        result = asyncio.run(run(server, given.streams, given.seconds))
    print(json.dumps(result))
    return 0 if result["is_ok"] else 1


def allow_open_files(number: int) -> None:
    """Raise this process's limit to what so many connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number + 256:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number + 256, hard), hard))


if __name__ == "__main__":
    sys.exit(main())
