"""Puts runs into one page of HTML: numbers, distributions of latencies, and what happened over time.

Knows nothing of files.
"""

from collections.abc import Sequence
from typing import Any

from chairlift.benchmark.clock import NS_PER_S
from chairlift.benchmark.result import BenchResult
from chairlift.benchmark.summary import BenchRun
from chairlift.benchmark.table import METRIC_NAMES, TOTALS, error_rows, latency_head, latency_rows, totals_rows
from chairlift.report.figures import add_legend, label_curves, new_figure, plot_curve, to_svg
from chairlift.report.page import html_page, html_table, html_text

_NUM_BUCKETS = 120
_CURVES = (
    ("ttft_ms", "Time to first token", "requests"),
    ("itl_ms", "Gap between two tokens", "gaps"),
    ("tpot_ms", "Time per output token", "requests"),
    ("e2e_ms", "Whole request", "requests"),
)


def render_result(result: BenchResult, percents: Sequence[float], metrics: Sequence[str] = tuple(METRIC_NAMES)) -> str:
    """Return the page."""
    runs = result.runs
    target = result.target
    parts = [
        html_text(f"{target.get('model')} at {target.get('base_url')}, {target.get('endpoint')}; {result.started_at}"),
        html_text(_settings(result), "note"),
        *(html_text(warning, "warning") for run in runs for warning in run.warnings),
        "<h2>Numbers</h2>",
        html_table(TOTALS, totals_rows(runs)),
        "<h2>Latencies</h2>",
        html_text("Times in milliseconds. Those of failed requests do not count.", "note"),
        html_table(latency_head(percents), latency_rows(runs, metrics)),
        curve_plots(runs),
    ]
    errors = list(error_rows(runs))
    if errors:
        parts += ["<h2>Errors</h2>", html_table(("run", "kind", "requests", "for example"), errors)]
    for number, run in enumerate(runs, start=1):
        parts += [f"<h2>Over time: run {number}</h2>", timeline_plots(run)]
    parts += ["<h2>The tool itself</h2>", html_table(("run", "measured", "p50", "p99", "max"), _own_rows(runs))]
    return html_page(f"Benchmark: {result.label}", parts)


def curve_plots(runs: Sequence[BenchRun]) -> str:
    """Distributions of latencies, one line per run, or per stream of a single one."""
    figure, axes = new_figure(2, 2, height=6.4)
    groups = [(f"run {number}", run.total) for number, run in enumerate(runs, start=1)]
    if len(runs) == 1 and len(runs[0].streams) > 1:
        groups = [(stream.name, stream) for stream in runs[0].streams]
    for axis, (name, title, what) in zip(axes, _CURVES, strict=True):
        for label, group in groups:
            plot_curve(axis, group.curves[name], label)
        label_curves(axis, title, what)
    if len(groups) > 1:
        add_legend(axes[0])
    return to_svg(figure)


def timeline_plots(run: BenchRun) -> str:
    """Tokens per second, requests on their way, and each request's time to first token."""
    figure, axes = new_figure(3, 1, height=7.0, sharex=True)
    width_s = max(run.duration_s / _NUM_BUCKETS, 1e-6)
    tokens = [0.0] * _NUM_BUCKETS
    for record in run.records:
        for at_ns, count in zip(record.tally.times_ns, record.tally.counts, strict=True):
            tokens[min(int((at_ns - run.start_ns) / NS_PER_S / width_s), _NUM_BUCKETS - 1)] += count
    middles = [(place + 0.5) * width_s for place in range(_NUM_BUCKETS)]
    axes[0].plot(middles, [count / width_s for count in tokens])
    axes[0].set(title="Output tokens per second")
    axes[1].step(*_on_their_way(run), where="post")
    axes[1].set(title="Requests on their way")
    _scatter_first_tokens(axes[2], run)
    axes[2].set(title="Time to first token, by when the request was sent", ylabel="ms", xlabel="seconds")
    for axis in axes:
        axis.set_ylim(bottom=0)
    return to_svg(figure)


def _scatter_first_tokens(axis: Any, run: BenchRun) -> None:
    good = [record for record in run.records if record.is_ok]
    bad = [record for record in run.records if not record.is_ok and record.sent_ns]
    axis.plot(
        [(record.sent_ns - run.start_ns) / NS_PER_S for record in good],
        [record.ttft_ns * 1e-6 for record in good],
        ".",
        markersize=4,
    )
    if bad:
        sent = [(record.sent_ns - run.start_ns) / NS_PER_S for record in bad]
        axis.plot(sent, [0.0] * len(bad), "x", markersize=4, color="tab:red", label="failed")
        add_legend(axis)


def _on_their_way(run: BenchRun) -> tuple[list[float], list[int]]:
    changes = sorted(
        change for record in run.records if record.sent_ns for change in ((record.sent_ns, 1), (record.end_ns, -1))
    )
    times, counts = [0.0], [0]
    for at_ns, change in changes:
        times.append((at_ns - run.start_ns) / NS_PER_S)
        counts.append(counts[-1] + change)
    return times, counts


def _own_rows(runs: Sequence[BenchRun]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, run in enumerate(runs, start=1):
        for name, found in (("sent late, ms", run.own.lateness_ms), ("event loop late, ms", run.own.loop_lag_ms)):
            if found is not None:
                values = (found.at(50.0), found.at(99.0), found.maximum)
                rows.append((str(number), name, *(f"{value:.2f}" for value in values)))
        rows.append((str(number), "part of a core", f"{run.own.cpu_busy:.1%}", "", ""))
    return rows


def _settings(result: BenchResult) -> str:
    return "; ".join(f"{name} {value}" for name, value in result.settings.items())
