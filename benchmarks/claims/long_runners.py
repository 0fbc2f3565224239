"""Chat requests that come between requests with answers of thousands of tokens: ``preemptive`` against ``fcfs``.

    python -m benchmarks.claims.long_runners               # 240 s of simulated arrivals, under a minute
    python -m benchmarks.claims.long_runners --seconds 120

An 8B model on an H100, from its data sheet, with 64 slots. 6 chat requests and 0.6 requests with answers of 4,000 to
8,000 tokens come per second, so the long runners alone would fill the slots. All requests have one tier, and with
``fcfs`` whoever comes has to wait until one of them is done. Claimed: with ``--scheduling-policy preemptive`` p95 of
the time to first token, of all requests, is at most half of that.
"""

from dataclasses import asdict, dataclass

from benchmarks.claims.chat import CHAT
from benchmarks.claims.simulated import parse_options, seconds_at, show, simulate, write_json
from chairlift.workload.distributions import Fixed, Uniform
from chairlift.workload.streams import Stream


@dataclass(frozen=True)
class Row:
    """One policy."""

    label: str
    ttft_p50_s: float
    ttft_p95_s: float
    chat_e2e_p95_s: float
    long_e2e_p95_s: float
    output_tokens_per_s: float
    num_preemptions: int
    num_recomputed_tokens: int


@dataclass(frozen=True)
class Figures:
    """What came out."""

    fcfs: Row
    preemptive: Row

    @property
    def part(self) -> float:
        """p95 with ``preemptive`` over that with ``fcfs``."""
        return self.preemptive.ttft_p95_s / self.fcfs.ttft_p95_s

    @property
    def holds(self) -> bool:
        """Whether what is claimed is so."""
        return self.part <= 0.5


@dataclass(frozen=True)
class Load:
    """How many slots there are, and what comes per second."""

    slots: int = 64
    chat_per_s: float = 6.0
    long_per_s: float = 0.6


def measure(seconds: float, seed: int = 0, load: Load = Load()) -> Figures:
    """Let requests come for so many seconds."""
    return Figures(*(_row(policy, seconds, seed, load) for policy in ("fcfs", "preemptive")))


def _row(policy: str, seconds: float, seed: int, load: Load) -> Row:
    chat = Stream(name="chat", duration_s=seconds, rate_per_s=load.chat_per_s, **CHAT)
    long = Stream(
        name="long",
        duration_s=seconds,
        rate_per_s=load.long_per_s,
        prompt_tokens=Fixed(1000),
        output_tokens=Uniform(4000, 8000),
    )
    run = simulate(policy, [chat, long], seed=seed, scheduling_policy=policy, max_num_seqs=load.slots)
    total, everybody = run.summary.total, run.summary.total.latencies
    return Row(
        policy,
        ttft_p50_s=seconds_at(everybody.ttft_ms, 50.0),
        ttft_p95_s=seconds_at(everybody.ttft_ms, 95.0),
        chat_e2e_p95_s=seconds_at(run.stream("chat").latencies.e2e_ms, 95.0),
        long_e2e_p95_s=seconds_at(run.stream("long").latencies.e2e_ms, 95.0),
        output_tokens_per_s=total.output_tokens_per_s,
        num_preemptions=total.num_preemptions,
        num_recomputed_tokens=total.num_recomputed_tokens,
    )


def main() -> None:
    """Measure and print."""
    options = parse_options(__doc__, seconds=240, seed=0)
    found = measure(options.seconds, options.seed)
    columns = (
        "", "TTFT p50, s", "p95, s", "chat E2E p95, s", "long E2E p95, s", "output tok/s", "preemptions", "recomputed",
    )  # fmt: skip
    rows = [
        (
            row.label,
            f"{row.ttft_p50_s:.1f}",
            f"{row.ttft_p95_s:.1f}",
            f"{row.chat_e2e_p95_s:.1f}",
            f"{row.long_e2e_p95_s:.1f}",
            f"{row.output_tokens_per_s:.0f}",
            str(row.num_preemptions),
            f"{row.num_recomputed_tokens:,}",
        )
        for row in (found.fcfs, found.preemptive)
    ]
    show("Chat requests and long runners on 64 slots", columns, rows)
    print(f"p95 of the time to first token: {found.part:.2f} of that with fcfs; allowed 0.5")
    print("holds" if found.holds else "MISSED")
    write_json(options.json, asdict(found))


if __name__ == "__main__":
    main()
