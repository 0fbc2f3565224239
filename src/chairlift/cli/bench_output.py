"""How ``chairlift bench serve`` shows a result and writes it to files. Knows nothing of how it came about."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chairlift.cli.terminal import add_rows, print_line, text_table
from chairlift.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from chairlift.benchmark.result import BenchResult

_TABLE_WIDTH = 160
_NAMES = frozenset({"run", "group", "ms", "error", "for example"})
"""Columns of texts; the others are of numbers."""


def check_writable(flags: Mapping[str, Any]) -> None:
    """Refuse now what could not be written after an hour of measuring.

    Raises:
        ConfigurationError: a folder is not there.
    """
    for path in (flags["json_path"], flags["report_path"]):
        if path is not None and str(path) != "-" and not Path(path).absolute().parent.is_dir():
            raise ConfigurationError(f"{path} cannot be written: its folder does not exist")
    if flags["save_detailed"] and flags["json_path"] is None:
        raise ConfigurationError("--save-detailed needs --json")


def show_result(console: "Console", result: "BenchResult", metrics: Sequence[str], percents: Sequence[float]) -> None:
    """Print tables on standard error, so that standard output can be JSON alone."""
    from rich.console import Console

    from chairlift.benchmark.table import TOTALS, error_rows, latency_head, latency_rows, totals_rows

    if not console.is_terminal:
        console = Console(stderr=True, width=_TABLE_WIDTH)
    target = result.target
    print_line(
        console,
        f"{result.label}: {target['endpoint']} of {target['base_url']}, prompts as {target['prompts']}, "
        f"tokens told {target['usage']}",
    )
    console.print(_table(TOTALS, totals_rows(result.runs)))
    console.print(_table(latency_head(percents), latency_rows(result.runs, metrics)))
    errors = list(error_rows(result.runs))
    if errors:
        console.print(_table(("run", "error", "requests", "for example"), errors))
    for number, run in enumerate(result.runs, start=1):
        late, busy = run.own.lateness_ms, run.own.cpu_busy
        sent_late = "nothing sent" if late is None else f"requests sent {late.at(99.0):.1f} ms late (p99)"
        print_line(console, f"run {number}: {run.duration_s:.2f} s; this tool: {sent_late}, {busy:.0%} of a core")
        if run.num_short:
            print_line(console, f"run {number}: {run.num_short} answers had fewer tokens than asked for")
        for warning in run.warnings:
            print_line(console, f"Warning: {warning}", style="yellow")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    table = text_table(head, left=_NAMES)
    add_rows(table, rows)
    return table


def write_result(flags: Mapping[str, Any], result: "BenchResult", percents: Sequence[float]) -> None:
    """Write the files that the flags ask for.

    Raises:
        ConfigurationError: one cannot be written.
    """
    if flags["json_path"] is not None:
        text = json.dumps(result.to_json(detailed=flags["save_detailed"]), indent=2) + "\n"
        if flags["json_path"] == "-":
            click.echo(text, nl=False)
        else:
            write_file(Path(flags["json_path"]), text)
    if flags["report_path"] is not None:
        from chairlift.benchmark.html import render_result

        write_file(flags["report_path"], render_result(result, percents))


def write_file(path: Path, text: str) -> None:
    """Write a file whose folder may have gone meanwhile.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
