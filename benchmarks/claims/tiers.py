"""Interactive requests beside batch work at twice what the machine can do: tiers against first come, first served.

    python -m benchmarks.claims.tiers                       # 2,000 interactive requests, under a minute
    python -m benchmarks.claims.tiers --num-requests 400

An 8B model on an H100, from its data sheet. Chat requests come at half the rate that the machine could serve if there
were nothing else, documents to summarize at one and a half times theirs. Claimed with tiers, against the chat alone:

- p99 of the chat's time to first token is longer by two full steps at most. A full step is one that uses its budget of
  tokens (8,192); the median of those is taken.
- Batch work gets at least 85 % of what the chat left idle. The machine's time that the chat needs is its tokens per
  second over those that it gets when it has the machine to itself and is always backlogged; what is left is idle, and
  would give so much of the tokens per second that batch work gets when it has the machine to itself.
"""

from dataclasses import asdict, dataclass

from benchmarks.claims.chat import CHAT, DOCUMENTS
from benchmarks.claims.simulated import Run, parse_options, show, simulate, write_json
from chairlift.workload.streams import Stream

LEAST_BATCH_PART = 0.85
_WARM_UP_PART = 0.1


@dataclass(frozen=True)
class Row:
    """One run."""

    label: str
    ttft_p50_ms: float
    ttft_p99_ms: float
    chat_tokens_per_s: float
    batch_tokens_per_s: float
    batch_part: float
    """Of what the chat left idle."""
    num_preemptions: int


@dataclass(frozen=True)
class Figures:
    """What came out. Tokens are prompt and output tokens that had not been computed before."""

    num_interactive: int
    full_step_ms: float
    chat_capacity_tokens_per_s: float
    batch_capacity_tokens_per_s: float
    idle_batch_tokens_per_s: float
    alone: Row
    tiers: Row
    fcfs: Row

    @property
    def most_ttft_ms(self) -> float:
        """What p99 of the time to first token may be with tiers."""
        return self.alone.ttft_p99_ms + 2 * self.full_step_ms

    @property
    def holds(self) -> bool:
        """Whether what is claimed is so."""
        return self.tiers.ttft_p99_ms <= self.most_ttft_ms and self.tiers.batch_part >= LEAST_BATCH_PART


def measure(num_requests: int, seed: int = 0) -> Figures:
    """Run the scenario with so many interactive requests."""
    chat_requests, chat_tokens = _capacity(CHAT, 1200, seed)
    batch_requests, batch_tokens = _capacity(DOCUMENTS, 400, seed)
    rate = chat_requests / 2
    span_s = num_requests / rate
    chat = Stream(name="chat", tenant="chat", num_requests=num_requests, rate_per_s=rate, **CHAT)

    def batch(tier: int) -> Stream:
        load = 1.5 * batch_requests
        return Stream(name="batch", tenant="batch", tier=tier, duration_s=span_s, rate_per_s=load, **DOCUMENTS)

    alone = simulate("chat alone", [chat], seed=seed)
    tiers = simulate("tiers", [chat, batch(1)], seed=seed)
    fcfs = simulate("fcfs", [chat, batch(0)], seed=seed)
    window = (_WARM_UP_PART * span_s, span_s)
    idle = (1 - _tokens_per_s(alone, "chat", window) / chat_tokens) * batch_tokens
    rows = [_row(run, window, idle) for run in (alone, tiers, fcfs)]
    return Figures(num_requests, _full_step_ms(tiers), chat_tokens, batch_tokens, idle, *rows)


def _capacity(lengths: dict, num_requests: int, seed: int) -> tuple[float, float]:
    """Requests and tokens per second of such requests alone, while the machine is full of them."""
    run = simulate("", [Stream(name="all", num_requests=num_requests, **lengths)], seed=seed)
    steps = run.meter.steps
    # All requests are there at the start: the first steps have prompts only, and the last ones an emptying batch.
    end_s = run.summary.simulated_s
    tokens_per_s = run.meter.useful_per_s(0.2 * end_s, 0.7 * end_s)
    num_tokens = sum(step.num_useful for step in steps)
    return tokens_per_s * num_requests / num_tokens, tokens_per_s


def _tokens_per_s(run: Run, tenant: str, window: tuple[float, float]) -> float:
    return sum(step.served(tenant) for step in run.meter.between(*window)) / (window[1] - window[0])


def _full_step_ms(run: Run) -> float:
    """Median duration of the steps that used their budget, but for a few tokens."""
    budget = run.summary.max_num_batched_tokens
    full = sorted(s.duration_ns for s in run.meter.steps if s.num_useful + s.num_recomputed >= 0.95 * budget)
    return full[len(full) // 2] / 1e6


def _row(run: Run, window: tuple[float, float], idle: float) -> Row:
    batch = _tokens_per_s(run, "batch", window)
    return Row(
        run.summary.label,
        run.ttft_ms("chat", 50.0),
        run.ttft_ms("chat", 99.0),
        _tokens_per_s(run, "chat", window),
        batch,
        batch / idle,
        run.summary.total.num_preemptions,
    )


def main() -> None:
    """Measure and print."""
    options = parse_options(__doc__, num_requests=2000, seed=0)
    found = measure(options.num_requests, options.seed)
    columns = ("", "chat TTFT p50, ms", "p99, ms", "chat tok/s", "batch tok/s", "of idle", "preemptions")
    rows = [
        (
            row.label,
            f"{row.ttft_p50_ms:.0f}",
            f"{row.ttft_p99_ms:.0f}",
            f"{row.chat_tokens_per_s:.0f}",
            f"{row.batch_tokens_per_s:.0f}",
            f"{row.batch_part:.1%}",
            str(row.num_preemptions),
        )
        for row in (found.alone, found.tiers, found.fcfs)
    ]
    show(f"{found.num_interactive} interactive requests; Llama 3.1 8B on H100, twice its capacity", columns, rows)
    print(
        f"p99 TTFT with tiers {found.tiers.ttft_p99_ms:.0f} ms; allowed {found.most_ttft_ms:.0f} ms "
        f"({found.alone.ttft_p99_ms:.0f} + 2 full steps of {found.full_step_ms:.0f})"
    )
    print(
        f"batch with tiers {found.tiers.batch_part:.1%} of the {found.idle_batch_tokens_per_s:.0f} tok/s left idle; "
        f"needed {LEAST_BATCH_PART:.0%}"
    )
    print("holds" if found.holds else "MISSED")
    write_json(options.json, asdict(found))


if __name__ == "__main__":
    main()
