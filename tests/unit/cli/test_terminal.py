"""What users named is printed as they named it: no markup, and nothing that a terminal would obey."""

import io

import pytest
from rich.console import Console

from chairlift.cli.terminal import add_rows, print_line, text_table
from chairlift.report.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, tschüß\u00a0你好", "plain, tschüß\u00a0你好"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\nb\r", r"a\nb\r"),
        ("\u202eabc", r"\u202eabc"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_spelt_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    printable(text).encode()


def test_lines_may_be_kept() -> None:
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_brackets_are_no_markup_in_tables_and_lines() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    table = text_table(("[b]head", "number"), left=("[b]head",), title="[/] of [red]machine")
    add_rows(table, [("run[/v2]", "[bold]1\\"), ("\x1b[2J", "2")])
    console.print(table)
    print_line(console, "[/bold]: done [i]")
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("[b]head", "[/] of [red]machine", "run[/v2]", "[bold]1\\", r"\x1b[2J", "[/bold]: done [i]"):
        assert words in said
