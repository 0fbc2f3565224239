"""Runs as rows of a table, for the terminal and for reports.

Knows nothing of how a table is drawn.
"""

from collections.abc import Iterator, Sequence

from chairlift.benchmark.summary import BenchRun, GroupSummary

TOTALS = (
    "run", "group", "ok", "failed", "req/s", "output tok/s", "total tok/s", "SLO met", "goodput req/s", "Jain",
)  # fmt: skip

METRIC_NAMES = {
    "ttft": ("ttft_ms", "TTFT"),
    "tpot": ("tpot_ms", "TPOT"),
    "itl": ("itl_ms", "ITL"),
    "e2el": ("e2e_ms", "E2E"),
    "pause": ("pause_ms", "pause between chunks"),
    "queue": ("client_queue_ms", "queue of this client"),
}
"""What ``--percentile-metrics`` takes -> where it is in a summary, and its name in tables."""


def totals_rows(runs: Sequence[BenchRun]) -> Iterator[tuple[str, ...]]:
    """Rows of :data:`TOTALS`: each run, then its streams and tenants if there are several."""
    for number, run in enumerate(runs, start=1):
        for name, group in _groups(run):
            jain = run.shares.jain_index if group is run.total else None
            yield (
                str(number),
                name,
                f"{group.num_ok} of {group.num_requests}",
                str(group.num_failed),
                f"{group.requests_per_s:.2f}",
                f"{group.output_tokens_per_s:.1f}",
                f"{group.total_tokens_per_s:.1f}",
                "" if group.slo_attainment is None else f"{group.slo_attainment:.1%}",
                "" if group.goodput_per_s is None else f"{group.goodput_per_s:.2f}",
                "" if jain is None else f"{jain:.4f}",
            )


def latency_head(percents: Sequence[float]) -> tuple[str, ...]:
    """Heads of the columns of :func:`latency_rows`."""
    return ("run", "group", "ms", "mean", *(f"p{percent:g}" for percent in percents), "max")


def latency_rows(runs: Sequence[BenchRun], metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Rows of latencies: for each run and group one of each metric."""
    for number, run in enumerate(runs, start=1):
        for name, group in _groups(run):
            for metric in metrics:
                place, shown = METRIC_NAMES[metric]
                found = group.latencies[place]
                if found is not None:
                    values = (found.mean, *found.percentiles, found.maximum)
                    yield (str(number), name, shown, *map(milliseconds, values))


def error_rows(runs: Sequence[BenchRun]) -> Iterator[tuple[str, ...]]:
    """Rows of run, kind, count and an example."""
    for number, run in enumerate(runs, start=1):
        for kind, error in run.total.errors.items():
            yield str(number), kind, str(error.count), error.example


def milliseconds(value: float) -> str:
    """Write a number of milliseconds as exactly as it can be trusted."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _groups(run: BenchRun) -> list[tuple[str, GroupSummary]]:
    """Return what has rows of its own; tenants that are called like the streams say nothing new."""
    groups = [(run.total.name, run.total)]
    if len(run.streams) > 1:
        groups += [(stream.name, stream) for stream in run.streams]
    if len(run.tenants) > 1 and {tenant.name for tenant in run.tenants} != {stream.name for stream in run.streams}:
        groups += [(f"tenant {tenant.name or '(none)'}", tenant) for tenant in run.tenants]
    return groups
