"""Plots of simulations, as SVG text to be put into a page.

Knows nothing of pages.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from chairlift.report.figures import MAX_LEGEND, Axes, add_legend, label_curves, named, new_figure, plot_curve, to_svg
from chairlift.simulator.summary import RunSummary, StreamSummary

_LEAST_TICK_PART = 0.06
"""Part of an axis that a tick's label takes."""


def latency_plots(runs: Sequence[RunSummary]) -> str:
    """Distributions of TTFT and of gaps between tokens, one line per run and stream."""
    figure, axes = new_figure(1, 2, height=3.6)
    for run, stream in _lines(runs):
        name = _name(run, stream, runs)
        plot_curve(axes[0], stream.ttft_curve_ms, name)
        plot_curve(axes[1], stream.itl_curve_ms, name)
    label_curves(axes[0], "Time to first token", "requests")
    label_curves(axes[1], "Gap between two tokens", "gaps")
    add_legend(axes[0])
    return to_svg(figure)


def timeline_plots(run: RunSummary) -> str:
    """Batch occupancy, KV memory and queue over time, the latter two by stream."""
    figure, axes = new_figure(4, 1, height=7.6, sharex=True)
    times = [point.at_s for point in run.series]
    columns = list(zip(*(point.means for point in run.series), strict=True)) if run.series else []
    if columns:
        num_streams = len(run.streams)
        axes[0].plot(times, columns[0])
        axes[1].plot(times, [100 * pages / run.num_pages for pages in columns[1]])
        for index, stream in enumerate(run.streams):
            axes[2].plot(times, columns[3 + index], label=named(stream.name))
            axes[3].plot(times, columns[3 + num_streams + index], label=named(stream.name))
    axes[0].axhline(run.max_num_seqs, linestyle=":", color="gray")
    axes[0].set(title="Requests in the step", ylabel="requests")
    axes[1].set(title="KV pages in use", ylabel="% of the pool", ylim=(0, 105))
    axes[2].set(title="Running, by stream", ylabel="requests")
    axes[3].set(title="Waiting, by stream", ylabel="requests", xlabel="simulated seconds")
    if 1 < len(run.streams) <= MAX_LEGEND:
        add_legend(axes[2])
    return to_svg(figure)


def sweep_plot(setting: str, values: Sequence[float], groups: Sequence[tuple[str, Sequence[RunSummary]]]) -> str:
    """Time per token, throughput and batch against a swept setting, and what KV pressure costs: the knee."""
    figure, axes = new_figure(2, 2, height=6.4, sharex=True)
    measures: list[tuple[Axes, str, Callable[[RunSummary], float]]] = [
        (axes[0], "TPOT, ms (p50, p99 dashed)", lambda run: _percentile(run, 50.0)),
        (axes[1], "output tokens per second", lambda run: run.total.output_tokens_per_s),
        (axes[2], "requests in a step, mean", lambda run: run.mean_batch),
        (axes[3], "recomputed, % of tokens", _recomputed_percent),
    ]
    for label, runs in groups:
        for axis, title, measure in measures:
            axis.plot(values, [measure(run) for run in runs], marker="o", markersize=3, label=named(label))
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
        add_legend(axes[0])
    return to_svg(figure)


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
