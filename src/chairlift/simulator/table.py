"""Simulations as rows of a table, for the terminal and for reports.

Knows nothing of how a table is drawn.
"""

from collections.abc import Iterable

from chairlift.report.statistics import Distribution
from chairlift.simulator.summary import RunSummary, StreamSummary

COLUMNS = (
    "run", "stream", "finished", "req/s", "output tok/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "TPOT p50",
    "E2E p99", "SLO met", "preempted", "recomputed",
)  # fmt: skip
"""Heads of the columns; times are in milliseconds."""


def table_rows(run: RunSummary) -> Iterable[tuple[str, ...]]:
    """Rows of :data:`COLUMNS`: one per stream, and one for all if there are several."""
    for stream in run.streams:
        yield _row(run, stream)
    if len(run.streams) > 1:
        yield _row(run, run.total)


def refusal_warnings(run: RunSummary) -> Iterable[str]:
    """Say of each stream how many of its requests were never served, and why the first of them were not."""
    for stream in run.streams:
        if stream.num_refused:
            reasons = "; ".join(stream.first_refusals)
            yield (
                f"{run.label}: {stream.num_refused} of {stream.num_arrived} requests of {stream.name} were refused: "
                f"{reasons}"
            )


def _row(run: RunSummary, stream: StreamSummary) -> tuple[str, ...]:
    latencies = stream.latencies
    met = stream.slo_attainment
    return (
        run.label,
        stream.name,
        f"{stream.num_finished} of {stream.num_arrived}",
        f"{stream.requests_per_s:.2f}",
        f"{stream.output_tokens_per_s:.1f}",
        _ms(latencies.ttft_ms, 50.0),
        _ms(latencies.ttft_ms, 99.0),
        _ms(latencies.itl_ms, 50.0),
        _ms(latencies.itl_ms, 99.0),
        _ms(latencies.tpot_ms, 50.0),
        _ms(latencies.e2e_ms, 99.0),
        "" if met is None else f"{met:.1%}",
        str(stream.num_preemptions),
        str(stream.num_recomputed_tokens),
    )


def _ms(distribution: Distribution | None, percent: float) -> str:
    if distribution is None:
        return ""
    value = distribution.at(percent)
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"
