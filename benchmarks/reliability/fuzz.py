"""Nonsense for every parser that a client reaches: no answer may be a fault of the server's, and nothing may be left.

python -m benchmarks.reliability.fuzz --requests 20000
"""

import argparse
import asyncio
import collections
import json
import random
import sys

from benchmarks.over_http.served import Server, ServerProcess
from benchmarks.reliability.bad_bodies import bad_bodies
from benchmarks.reliability.client import request
from benchmarks.reliability.watch import Memory, faults, server_pids, until_idle

SETTINGS = {"executor": "fake", "max_model_len": 64, "log_level": "error"}
MAX_GROWTH_MIB = 48.0
NUM_CLIENTS = 8
LATE = 504
"""The answer to a deadline that cannot be met, which is asked for by chance."""


async def run(server: ServerProcess, num_requests: int, seed: int) -> dict[str, object]:
    """Send so many requests, several at a time."""
    statuses: collections.Counter[int] = collections.Counter()
    faulty: list[tuple[str, str]] = []

    async def client(number: int) -> None:
        bodies = bad_bodies(random.Random(f"{seed} {number}"))
        for _ in range(num_requests // NUM_CLIENTS):
            path, body = next(bodies)
            outcome = await request(server.url, body, path=path)
            statuses[outcome.status] += 1
            is_fault = outcome.status == 0 or (outcome.status >= 500 and outcome.status != LATE)
            if is_fault or outcome.end in ("cut", "error event"):
                faulty.append((f"{path} {outcome.status} {outcome.end}", body[:300].decode(errors="replace")))

    memory = Memory(server_pids(server.pid))
    async with memory.watching():
        await asyncio.gather(*map(client, range(NUM_CLIENTS)))
    found = await until_idle(server.url)
    return {
        "requests": sum(statuses.values()),
        "seed": seed,
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        "faulty": len(faulty),
        "first_faulty": faulty[:5],
        "memory_growth_mib": memory.growth_mib,
        "faults": faults(found),
        "is_ok": not faulty and not faults(found) and memory.grew_at_most(MAX_GROWTH_MIB),
    }


def main() -> int:
    """Print one JSON line; the status is 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with Server(SETTINGS) as server:
        result = asyncio.run(run(server, given.requests, given.seed))
    print(json.dumps(result))
    return 0 if result["is_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
