"""Puts tables and plots of simulations into one page of HTML.

Knows nothing of files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from chairlift.simulator.report.plots import latency_plots, sweep_plot, timeline_plots
from chairlift.simulator.summary import RunSummary
from chairlift.simulator.table import COLUMNS, table_rows

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #222; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
svg { max-width: 100%; height: auto; } .wide { overflow-x: auto; } p.note { color: #666; }
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A swept setting: its values, and for each compared run the summaries in their order."""

    setting: str
    values: tuple[float, ...]
    groups: tuple[tuple[str, tuple[RunSummary, ...]], ...]


def render_page(title: str, runs: Sequence[RunSummary], sweep: Sweep | None = None) -> str:
    """Return the page. The same runs give the same bytes."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        _facts(runs[0]),
        "<h2>Numbers</h2>",
        "<p class=note>Times in milliseconds.</p>",
    ]
    parts.append(_table(COLUMNS, (row for run in runs for row in table_rows(run))))
    if sweep is not None:
        parts += [f"<h2>{escape(sweep.setting)}</h2>", sweep_plot(sweep.setting, sweep.values, sweep.groups)]
        parts.append("<p class=note>The dotted line is the least value with 97 % of the best throughput.</p>")
    if sweep is None or len(runs) <= 4:
        parts += ["<h2>Latencies</h2>", latency_plots(runs)]
        for run in runs:
            parts += [f"<h2>Over time: {escape(run.label)}</h2>", timeline_plots(run)]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _facts(run: RunSummary) -> str:
    text = (
        f"{run.machine}: {run.max_num_seqs} slots, {run.max_num_batched_tokens} tokens per step, "
        f"{run.num_pages} KV pages of {run.page_size} tokens"
    )
    return f"<p>{escape(text)}</p>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>"
