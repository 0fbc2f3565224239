"""A figure with its unit, what is wanted of it and the command behind it.

Knows nothing of how it is measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One number.

    Args:
        key: its name in the file of results.
        what: the same in words.
        value: the number; the median where there are several runs.
        unit: what it counts.
        command: what prints it, or what is timed.
        runs: every run's number.
        wanted: what it should be, where the project has set itself a bound.
        holds: whether it is that.
    """

    key: str
    what: str
    value: float
    unit: str
    command: str
    runs: tuple[float, ...] = ()
    wanted: str = ""
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        """``holds`` or ``MISSED``; empty where nothing is wanted."""
        return {None: "", True: "holds", False: "MISSED"}[self.holds]


def bounded(figure: Figure, *, at_most: float | None = None, at_least: float | None = None) -> Figure:
    """Return the figure with a bound, and whether it keeps it."""
    bound = at_most if at_least is None else at_least
    if bound is None:
        return figure
    wanted = f"at most {bound:g}" if at_least is None else f"at least {bound:g}"
    holds = figure.value <= bound if at_least is None else figure.value >= bound
    return Figure(**{**vars(figure), "wanted": wanted, "holds": holds})


def show(figures: Iterable[Figure]) -> Table:
    """Put figures into a table."""
    table = Table(title="Chairlift")
    for column, justify in (("figure", "left"), ("", "right"), ("runs", "right"), ("wanted", "right"), ("", "left")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    for one in figures:
        runs = ", ".join(number(run) for run in one.runs) if len(one.runs) > 1 else ""
        table.add_row(one.what, f"{number(one.value)} {one.unit}", runs, one.wanted, one.verdict)
    return table


def number(value: float) -> str:
    """Return a number with about three digits that say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
