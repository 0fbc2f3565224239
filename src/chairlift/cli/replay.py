"""``chairlift replay``: make the plans of a decision log again.

Knows nothing of what plans are: it reads, compares through the core, and prints.
"""

from pathlib import Path

import click

from chairlift.cli.options import HELP_NAMES
from chairlift.report.text import printable


@click.command(context_settings=HELP_NAMES)
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(log: Path) -> int:
    """Give a fresh scheduler all that the one behind LOG was told, and compare every plan.

    LOG is a file that chairlift serve wrote with --decision-log. The exit status is 0 if all plans are identical; else
    the first difference is printed, and it is 1.
    """
    from chairlift.core.replay import replay as replay_entries
    from chairlift.engine.decision_log_file import read_entries

    report = replay_entries(read_entries(log))
    runs = "1 run" if report.num_runs == 1 else f"{report.num_runs} runs"
    if report.difference is None:
        click.echo(f"{report.num_plans} plans of {runs} are identical ({report.num_entries} entries).")
        return 0
    found = report.difference
    click.echo(f"Entry {found.entry + 1} of the log differs, after {report.num_plans} plans: {printable(found.what)}")
    click.echo(f"  logged:   {printable(str(found.logged))}")
    click.echo(f"  replayed: {printable(str(found.replayed))}")
    return 1
