"""Tables and lines for the terminal that take every text as it is: brackets are no markup, controls are spelt out.

Knows nothing of what is shown.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from chairlift.report.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def plain(text: str, style: str = "") -> "Text":
    """Return the text as it is, on one line."""
    from rich.text import Text

    return Text(printable(text), style=style)


def text_table(head: Sequence[str], *, left: Collection[str], title: str | None = None) -> "Table":
    """Return an empty table; columns not in ``left`` are numbers."""
    from rich.table import Table

    table = Table(title=None if title is None else plain(title, "table.title"))
    for column in head:
        table.add_column(plain(column, "table.header"), justify="left" if column in left else "right")
    return table


def add_rows(table: "Table", rows: Iterable[Iterable[str]]) -> None:
    """Add rows of texts."""
    for row in rows:
        table.add_row(*map(plain, row))


def print_line(console: "Console", text: str, *, style: str = "") -> None:
    """Print a line."""
    console.print(plain(text, style))
