"""Figures as SVG text to be put into a page, made without a display, and with the same bytes for the same numbers.

Knows nothing of what is plotted.
"""

import io
import warnings
from collections.abc import Sequence
from typing import Any, cast

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from chairlift.report.statistics import CURVE_CHANCES
from chairlift.report.text import printable

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
MAX_LEGEND = 12
"""More lines than that get no legend."""
_SPACE = " "


def new_figure(num_rows: int, num_columns: int, *, height: float, sharex: bool = False) -> tuple[Any, list[Axes]]:
    """Return a figure and its axes, row by row."""
    with _mpl.rc_context(_STYLE):
        figure = cast("Any", Figure(figsize=(10, height), layout="constrained"))
        FigureCanvasSVG(figure)
        grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=sharex)
        return figure, list(grid.flat)


def plot_curve(axis: Axes, curve: Sequence[float], label: str) -> None:
    """Draw the quantiles at :data:`~.statistics.CURVE_CHANCES` over a logarithmic axis of milliseconds."""
    if curve:
        axis.plot([max(value, 1e-3) for value in curve], [100 * chance for chance in CURVE_CHANCES], label=named(label))


def label_curves(axis: Axes, title: str, what: str) -> None:
    """Name the axes of curves; ``what`` is counted."""
    axis.set(title=title, xlabel="ms", ylabel=f"% of {what}", xscale="log")
    axis.set_ylim(0, 100)


def named(name: str) -> str:
    """Return the label of a line that a legend is to call by this name: those that begin with ``_`` are left out."""
    return _SPACE + printable(name)


def add_legend(axis: Axes) -> None:
    """Name the lines, if they are not too many; a name is no formula, even with ``$`` in it."""
    _, labels = axis.get_legend_handles_labels()
    if not 1 <= len(labels) <= MAX_LEGEND:
        return
    for text in axis.legend(fontsize=8).get_texts():
        text.set(text=text.get_text().removeprefix(_SPACE), parse_math=False)


def to_svg(figure: Any) -> str:
    """Return the figure's SVG element."""
    text = io.StringIO()
    with _mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The text is drawn by whoever opens the page, in fonts that need not be here.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from", category=UserWarning)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    # The XML declaration and document type have no place inside a page.
    return text.getvalue()[text.getvalue().index("<svg") :]
