"""``chairlift bench compare``: results side by side. Knows nothing of how they were measured."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chairlift.cli.options import HELP_NAMES
from chairlift.cli.terminal import add_rows, text_table
from chairlift.errors import ConfigurationError
from chairlift.report.text import printable

if TYPE_CHECKING:
    from chairlift.benchmark.compare import Difference, Spread


@click.command(context_settings=HELP_NAMES)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A.json B.json...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def compare(results: tuple[Path, ...], as_json: bool) -> None:
    """Compare results of chairlift bench serve with the first of them: medians of their runs, and ratios.

    A difference is better or worse if every run of one result is beyond every run of the other; with one run of
    either there is nothing to tell it from chance.
    """
    from chairlift.benchmark.compare import changed_settings
    from chairlift.benchmark.compare import compare as compare_results
    from chairlift.benchmark.result import read_result

    if len(results) < 2:
        raise ConfigurationError("compare needs two results, A.json and B.json")
    first, *others = [read_result(path) for path in results]
    found = [(other, compare_results(first, other), changed_settings(first, other)) for other in others]
    if as_json:
        click.echo(json.dumps([_to_json(first.label, *one) for one in found], indent=2))
        return
    for path, (other, differences, changed) in zip(results[1:], found, strict=True):
        _show(f"{other.label} ({path.name}) against {first.label} ({results[0].name})", differences)
        for change in changed:
            click.echo(f"not the same load: {printable(change)}", err=True)
        if len(first.runs) < 2 or len(other.runs) < 2:
            click.echo("one run says nothing about chance; measure both with --num-runs 3 or more", err=True)


def _show(title: str, differences: "list[Difference]") -> None:
    from rich.console import Console

    table = text_table(("", "first", "second", "ratio", ""), left=("",), title=title)
    for one in differences:
        ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
        add_rows(table, [(one.quantity, _shown(one.first), _shown(one.second), ratio, one.verdict)])
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def _shown(spread: "Spread") -> str:
    if spread.least == spread.greatest:
        return f"{spread.median:.6g}"
    return f"{spread.median:.6g} ({spread.least:.6g} to {spread.greatest:.6g})"


def _to_json(label: str, other: Any, differences: "list[Difference]", changed: list[str]) -> dict[str, object]:
    return {
        "first": label,
        "second": other.label,
        "changed_settings": changed,
        "quantities": [
            {
                "quantity": one.quantity,
                "first": {"median": one.first.median, "min": one.first.least, "max": one.first.greatest},
                "second": {"median": one.second.median, "min": one.second.least, "max": one.second.greatest},
                "ratio": one.ratio,
                "verdict": one.verdict,
            }
            for one in differences
        ],
    }
