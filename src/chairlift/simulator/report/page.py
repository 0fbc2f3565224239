"""Puts tables and plots of simulations into one page of HTML.

Knows nothing of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.report.page import html_escaped, html_page, html_table, html_text
from chairlift.simulator.report.plots import latency_plots, sweep_plot, timeline_plots
from chairlift.simulator.summary import RunSummary
from chairlift.simulator.table import COLUMNS, refusal_warnings, table_rows


@dataclass(frozen=True, slots=True)
class Sweep:
    """A swept setting: its values, and for each compared run the summaries in their order."""

    setting: str
    values: tuple[float, ...]
    groups: tuple[tuple[str, tuple[RunSummary, ...]], ...]


def render_page(title: str, runs: Sequence[RunSummary], sweep: Sweep | None = None) -> str:
    """Return the page. The same runs give the same bytes."""
    parts = [
        _facts(runs),
        *(html_text(warning, "warning") for run in runs for warning in refusal_warnings(run)),
        "<h2>Numbers</h2>",
        html_text("Times in milliseconds.", "note"),
        html_table(COLUMNS, (row for run in runs for row in table_rows(run))),
    ]
    if sweep is not None:
        parts += [f"<h2>{html_escaped(sweep.setting)}</h2>", sweep_plot(sweep.setting, sweep.values, sweep.groups)]
        parts.append(html_text("The dotted line is the least value with 97 % of the best throughput.", "note"))
    if sweep is None or len(runs) <= 4:
        parts += ["<h2>Latencies</h2>", latency_plots(runs)]
        for run in runs:
            parts += [f"<h2>Over time: {html_escaped(run.label)}</h2>", timeline_plots(run)]
    return html_page(title, parts)


def _facts(runs: Sequence[RunSummary]) -> str:
    slots, budgets, pages, sizes = (
        _range([getattr(run, name) for run in runs])
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_pages", "page_size")
    )
    return html_text(f"{runs[0].machine}: {slots} slots, {budgets} tokens per step, {pages} KV pages of {sizes} tokens")


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
