"""Plots of simulations, as SVG text to be put into a page.

Knows nothing of pages. Figures are made without a display, and with the same bytes for the same numbers.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from chairlift.simulator.statistics import CURVE_CHANCES
from chairlift.simulator.summary import RunSummary, StreamSummary

# Matplotlib's stubs leave keyword arguments open, so its objects pass through here untyped.
Axes = Any
_mpl = cast("Any", matplotlib)

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "chairlift",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}
_MAX_LEGEND = 12
_LEAST_TICK_PART = 0.06
"""Part of an axis that a tick's label takes."""


def latency_plots(runs: Sequence[RunSummary]) -> str:
    """Distributions of TTFT and of gaps between tokens, one line per run and stream."""
    figure, axes = _figure(1, 2, height=3.6)
    for run, stream in _lines(runs):
        name = _name(run, stream, runs)
        for axis, curve in ((axes[0], stream.ttft_curve_ms), (axes[1], stream.itl_curve_ms)):
            if curve:
                axis.plot([max(value, 1e-3) for value in curve], [100 * c for c in CURVE_CHANCES], label=name)
    for axis, title in ((axes[0], "Time to first token"), (axes[1], "Gap between two tokens")):
        axis.set(title=title, xlabel="ms", ylabel="% of requests" if axis is axes[0] else "% of gaps", xscale="log")
        axis.set_ylim(0, 100)
    _legend(axes[0])
    return _svg(figure)


def timeline_plots(run: RunSummary) -> str:
    """Batch occupancy, KV memory and queue over time, the latter two by stream."""
    figure, axes = _figure(4, 1, height=7.6, sharex=True)
    times = [point.at_s for point in run.series]
    columns = list(zip(*(point.means for point in run.series), strict=True)) if run.series else []
    if columns:
        num_streams = len(run.streams)
        axes[0].plot(times, columns[0])
        axes[1].plot(times, [100 * pages / run.num_pages for pages in columns[1]])
        for index, stream in enumerate(run.streams):
            axes[2].plot(times, columns[3 + index], label=stream.name)
            axes[3].plot(times, columns[3 + num_streams + index], label=stream.name)
    axes[0].axhline(run.max_num_seqs, linestyle=":", color="gray")
    axes[0].set(title="Requests in the step", ylabel="requests")
    axes[1].set(title="KV pages in use", ylabel="% of the pool", ylim=(0, 105))
    axes[2].set(title="Running, by stream", ylabel="requests")
    axes[3].set(title="Waiting, by stream", ylabel="requests", xlabel="simulated seconds")
    if 1 < len(run.streams) <= _MAX_LEGEND:
        _legend(axes[2])
    return _svg(figure)


def sweep_plot(setting: str, values: Sequence[float], groups: Sequence[tuple[str, Sequence[RunSummary]]]) -> str:
    """Time per token, throughput and batch against a swept setting, and what KV pressure costs: the knee."""
    figure, axes = _figure(2, 2, height=6.4, sharex=True)
    measures: list[tuple[Axes, str, Callable[[RunSummary], float]]] = [
        (axes[0], "TPOT, ms (p50, p99 dashed)", lambda run: _percentile(run, 50.0)),
        (axes[1], "output tokens per second", lambda run: run.total.output_tokens_per_s),
        (axes[2], "requests in a step, mean", lambda run: run.mean_batch),
        (axes[3], "recomputed, % of tokens", _recomputed_percent),
    ]
    for label, runs in groups:
        for axis, title, measure in measures:
            axis.plot(values, [measure(run) for run in runs], marker="o", markersize=3, label=label)
            axis.set(title=title)
        color = axes[0].lines[-1].get_color()
        axes[0].plot(values, [_percentile(run, 99.0) for run in runs], "--", color=color)
        _mark_knee(axes, values, runs, color if len(groups) > 1 else "gray")
    for axis in axes:
        axis.set_ylim(bottom=0)
        is_wide = min(values) > 0 and max(values) >= 8 * min(values)
        if is_wide:
            axis.set_xscale("log", base=2)
        ticks = _apart([math.log2(value) if is_wide else value for value in values])
        axis.set_xticks([values[i] for i in ticks], [f"{values[i]:g}" for i in ticks])
        axis.minorticks_off()
    for axis in axes[2:]:
        axis.set_xlabel(setting)
    if len(groups) > 1:
        _legend(axes[0])
    return _svg(figure)


def _mark_knee(axes: Sequence[Axes], values: Sequence[float], runs: Sequence[RunSummary], color: Any) -> None:
    knee = find_knee(values, [run.total.output_tokens_per_s for run in runs])
    if knee is None:
        return
    for axis in axes:
        axis.axvline(values[knee], linestyle=":", color=color)
    # At the foot of the panel, where the throughput's line is not.
    axes[1].annotate(
        f"{values[knee]:g}",
        (values[knee], 0.03),
        xycoords=axes[1].get_xaxis_transform(),
        textcoords="offset points",
        xytext=(4, 0),
        color=color,
    )


def _apart(places: Sequence[float]) -> list[int]:
    """Return the indices of places that leave each other room for a label, the first and the last one among them."""
    least = (max(places) - min(places)) * _LEAST_TICK_PART
    order = sorted(range(len(places)), key=lambda index: places[index])
    kept = order[:1]
    for index in order[1:-1]:
        if places[index] - places[kept[-1]] >= least and places[order[-1]] - places[index] >= least:
            kept.append(index)
    return sorted({*kept, order[-1]})


def find_knee(values: Sequence[float], throughputs: Sequence[float], part: float = 0.97) -> int | None:
    """Return the place of the least value that reaches nearly the best throughput; ``None`` if nothing ran."""
    best = max(throughputs, default=0.0)
    if best <= 0:
        return None
    good = [index for index, throughput in enumerate(throughputs) if throughput >= part * best]
    return min(good, key=lambda index: values[index])


def _percentile(run: RunSummary, percent: float) -> float:
    tpot = run.total.latencies.tpot_ms
    return float("nan") if tpot is None else tpot.at(percent)


def _recomputed_percent(run: RunSummary) -> float:
    computed = run.num_prefill_tokens + run.total.num_output_tokens
    return 100 * run.total.num_recomputed_tokens / computed if computed else 0.0


def _lines(runs: Sequence[RunSummary]) -> list[tuple[RunSummary, StreamSummary]]:
    return [(run, stream) for run in runs for stream in run.streams]


def _name(run: RunSummary, stream: StreamSummary, runs: Sequence[RunSummary]) -> str:
    if len(runs) == 1:
        return stream.name
    return run.label if len(run.streams) == 1 else f"{run.label}: {stream.name}"


def _figure(num_rows: int, num_columns: int, *, height: float, sharex: bool = False) -> tuple[Any, list[Axes]]:
    with _mpl.rc_context(_STYLE):
        figure = cast("Any", Figure(figsize=(10, height), layout="constrained"))
        FigureCanvasSVG(figure)
        grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=sharex)
        return figure, list(grid.flat)


def _legend(axis: Axes) -> None:
    _, labels = axis.get_legend_handles_labels()
    if 1 <= len(labels) <= _MAX_LEGEND:
        axis.legend(fontsize=8)


def _svg(figure: Any) -> str:
    text = io.StringIO()
    with _mpl.rc_context(_STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    # The XML declaration and document type have no place inside a page.
    return text.getvalue()[text.getvalue().index("<svg") :]
