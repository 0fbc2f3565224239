"""One tenant's short prompts while another tenant's 6,000 tokens are computed, on the real engine over HTTP.

    python -m benchmarks.over_http.short_prompts            # about four minutes

Tenant A sends prompts of 50 tokens, one after the other; first alone, then from the moment at which B's long prompt was
sent until B has its first token. A full step is one that used its budget; the further B's prompt is, the longer it
takes, since every token looks back on more. Wanted: the median of A's times to first token is at most that of A alone
and three full steps of the median, and the longest at most A alone and three of the longest full steps; under
``--tenant-order fair`` and with none.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.over_http.served import TIMEOUT_S, WIRE, Server, full_steps, ttft_s
from chairlift.benchmark.client import Client
from chairlift.benchmark.clock import SystemClock
from chairlift.benchmark.connections import Connections
from chairlift.benchmark.prompts import MadePrompts
from chairlift.benchmark.records import CallRecord
from chairlift.workload.items import WorkRequest
from chairlift.workload.lengths import VOCAB_SIZE

NUM_SHORT_TOKENS = 50
NUM_LONG_TOKENS = 6000
BUDGET_TOKENS = 256
SETTINGS = {"max_num_seqs": 16, "max_num_batched_tokens": BUDGET_TOKENS, "max_model_len": 8192}
SETTINGS |= {"kv_cache_memory": "1GiB"}
NUM_IDLE = 20


class Prompts:
    """Sends prompts that are like no other, one at a time and tenant."""

    def __init__(self, http: Connections) -> None:
        self._clock = SystemClock()
        self._client = Client(http, WIRE, self._clock)
        self._maker = MadePrompts(vocab_size=VOCAB_SIZE)
        self._num_sent = 0

    async def send(self, num_tokens: int, tenant: str) -> float:
        """Send a prompt; seconds to its first token, of two."""
        self._num_sent += 1
        (prompt,) = self._maker.exchange(WorkRequest(0, num_tokens, 2), self._num_sent).turns
        record = CallRecord(
            number=self._num_sent, stream=0, tier=0, tenant=tenant, due_ns=self._clock.now_ns(), num_wanted_tokens=2
        )
        await self._client.answer(WIRE.body(prompt, 2, user=tenant), record)
        if not record.is_ok:
            raise RuntimeError(f"{record.error}: {record.message}")
        return ttft_s(record)


async def measure(url: str, repeats: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds to first token of A alone, of A beside B, and of B."""
    async with Connections(url, timeout_s=TIMEOUT_S) as http:
        client = Prompts(http)
        await client.send(NUM_LONG_TOKENS, "b")  # compiles what is compiled at first use
        idle = [await client.send(NUM_SHORT_TOKENS, "a") for _ in range(NUM_IDLE)]
        beside: list[float] = []
        long: list[float] = []
        for _ in range(repeats):
            other = asyncio.create_task(client.send(NUM_LONG_TOKENS, "b"))
            await asyncio.sleep(0)
            started_s = time.perf_counter()
            while not other.done():
                found = await client.send(NUM_SHORT_TOKENS, "a")
                if not other.done():
                    beside.append(found)
            long.append(time.perf_counter() - started_s)
            await other
    return idle, beside, long


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    table = Table(title=f"{NUM_SHORT_TOKENS}-token prompts during a prefill of {NUM_LONG_TOKENS}, over HTTP")
    for column in (
        "--tenant-order",
        "alone p50, ms",
        "beside p50, ms",
        "allowed, ms",
        "max, ms",
        "allowed, ms",
        "prompts",
        "",
    ):
        table.add_column(column, justify="right")
    record: dict[str, object] = {}
    for order in ("fair", "none"):
        with TemporaryDirectory() as folder:
            log = Path(folder) / "decisions.jsonl"
            flags = ["--tenant-order", order, "--trust-user", "--decision-log", str(log)]
            with Server(SETTINGS, flags) as server:
                idle, beside, long = asyncio.run(measure(server.url, options.repeats))
            steps = full_steps(log, BUDGET_TOKENS)
        allowed_s = [median(idle) + 3 * step_s for step_s in steps]
        numbers = (median(idle), median(beside), allowed_s[0], max(beside), allowed_s[1])
        verdict = "holds" if median(beside) <= allowed_s[0] and max(beside) <= allowed_s[1] else "MISSED"
        table.add_row(order, *(f"{1000 * number:.0f}" for number in numbers), str(len(beside)), verdict)
        record[order] = {"idle_s": idle, "beside_s": beside, "long_s": long, "full_steps_s": steps}
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
