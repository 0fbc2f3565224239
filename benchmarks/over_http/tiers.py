"""Interactive requests beside batch work at twice what this machine can do, on the real engine: tiers against fcfs.

    python -m benchmarks.over_http.tiers                    # about ten minutes
    python -m benchmarks.over_http.tiers --seconds 30

The small sister of ``benchmarks.claims.tiers``. What the machine can serve is measured first, chat and documents each
by themselves and all there at once. Then chat arrives at half of that rate, alone and beside documents at one and a
half times theirs, which are in tier 1 and once in the same tier. A run ends with the last chat answer.

Wanted: with tiers, the 99th percentile of the chat's time to first token stays within a tenth of what it is without,
and batch work goes on. How far it is from that of the chat alone and two full steps is printed; with so few requests,
the 99th percentile is one or two of them.
"""

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.over_http.served import Server, duration_s, full_steps, serve, ttft_s
from chairlift.benchmark.runner import FinishedRun
from chairlift.report.statistics import describe
from chairlift.workload.distributions import Lognormal
from chairlift.workload.streams import Stream, Workload

CHAT: dict[str, Any] = {"prompt_tokens": Lognormal(96, 0.6, 512), "output_tokens": Lognormal(40, 0.6, 160)}
DOCUMENTS: dict[str, Any] = {"prompt_tokens": Lognormal(600, 0.4, 1500), "output_tokens": Lognormal(60, 0.5, 200)}
BUDGET_TOKENS = 256
SETTINGS = {"max_num_seqs": 16, "max_num_batched_tokens": BUDGET_TOKENS, "max_model_len": 2048}
SETTINGS |= {"kv_cache_memory": "1GiB"}


@dataclass(frozen=True)
class Row:
    """One run."""

    label: str
    chat_ttft_p50_s: float
    chat_ttft_p99_s: float
    chat_tokens_per_s: float
    batch_tokens_per_s: float
    full_step_s: float


def capacity(lengths: dict[str, Any], num_requests: int) -> float:
    """Requests per second of such requests, all there at once."""
    workload = Workload((Stream(name="all", num_requests=num_requests, **lengths),), 3)
    with Server(SETTINGS) as server:
        finished = asyncio.run(serve(server.url, workload))
    return num_requests / duration_s(finished)


def run(label: str, streams: list[Stream], log: Path, seed: int) -> Row:
    """Serve streams with a server of their own, until the chat's last answer."""
    workload = Workload(tuple(streams), seed)
    with Server(SETTINGS, ["--decision-log", str(log)]) as server:
        finished = asyncio.run(serve(server.url, workload, until_stream_ends=0))
    ttft = describe(ttft_s(record) for record in finished.records if record.stream == 0)
    assert ttft is not None  # noqa: S101 - all of them were waited for
    return Row(
        label,
        ttft.at(50),
        ttft.at(99),
        _pieces_per_s(finished, 0),
        _pieces_per_s(finished, 1),
        full_steps(log, BUDGET_TOKENS).median_s if len(streams) > 1 else 0.0,
    )


def _pieces_per_s(finished: FinishedRun, stream: int) -> float:
    records = (record for record in finished.records if record.stream == stream)
    return sum(len(record.tally.times_ns) for record in records) / duration_s(finished)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90, help="so long requests arrive")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    chat_rate, batch_rate = capacity(CHAT, 64), capacity(DOCUMENTS, 24)
    arriving = {"duration_s": options.seconds}
    chat = Stream(name="chat", rate_per_s=chat_rate / 2, **arriving, **CHAT)

    def batch(tier: int) -> Stream:
        return Stream(name="batch", tier=tier, rate_per_s=1.5 * batch_rate, **arriving, **DOCUMENTS)

    with TemporaryDirectory() as folder:
        log = Path(folder)
        rows = [
            run("chat alone", [chat], log / "alone", options.seed),
            run("tiers", [chat, batch(1)], log / "tiers", options.seed),
            run("fcfs", [chat, batch(0)], log / "fcfs", options.seed),
        ]
    alone, tiers, fcfs = rows
    table = Table(title=f"Chat at {chat_rate / 2:.2f} and documents at {1.5 * batch_rate:.2f} requests/s, over HTTP")
    for column in ("", "chat TTFT p50, s", "p99, s", "chat tok/s", "batch tok/s", "full step, s"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = (row.chat_ttft_p50_s, row.chat_ttft_p99_s, row.chat_tokens_per_s, row.batch_tokens_per_s)
        table.add_row(row.label, *(f"{number:.2f}" for number in numbers), f"{row.full_step_s:.3f}")
    Console().print(table)
    two_steps_s = alone.chat_ttft_p99_s + 2 * tiers.full_step_s
    found = f"p99 TTFT with tiers {tiers.chat_ttft_p99_s:.2f} s, without {fcfs.chat_ttft_p99_s:.2f} s"
    print(f"{found}; alone and two full steps would be {two_steps_s:.2f} s")
    holds = tiers.chat_ttft_p99_s <= 0.1 * fcfs.chat_ttft_p99_s and tiers.batch_tokens_per_s > 0
    print("holds" if holds else "MISSED")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
