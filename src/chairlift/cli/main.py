"""The ``chairlift`` command. Knows only the names of its commands; each is imported when it is used."""

import difflib
import sys
from importlib import import_module

import click

from chairlift.errors import ChairliftError, ConfigurationError
from chairlift.report.text import printable

_COMMANDS = {
    "serve": ("chairlift.cli.serve:serve", "Serve a model over an OpenAI-compatible API."),
    "chat": ("chairlift.cli.chat:chat", "Talk to a model in the terminal."),
    "generate": ("chairlift.cli.generate:generate", "Answer a file of prompts: JSON lines in, JSON lines out."),
    "simulate": ("chairlift.cli.simulate:simulate", "Serve a workload on a machine that is not there."),
    "calibrate": ("chairlift.cli.calibrate:calibrate", "Time steps of the real engine, for simulate."),
    "explain": ("chairlift.cli.explain:explain", "Say what a request waits for."),
    "replay": ("chairlift.cli.replay:replay", "Make the plans of a decision log again, and compare."),
    "bench": ("chairlift.cli.bench:bench", "Measure throughput and latency."),
}
"""Name -> where the command is, and its line in ``chairlift --help``."""

_USAGE_STATUS = 2
_INTERRUPTED_STATUS = 130


class LazyGroup(click.Group):
    """A group that imports a command only when it is run, so that ``--help`` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of that name, imported now."""
        if cmd_name not in _COMMANDS:
            close = difflib.get_close_matches(cmd_name, _COMMANDS, n=1)
            ctx.fail(f"No such command '{cmd_name}'.{f' Did you mean {close[0]!r}?' if close else ''}")
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import chairlift

        click.echo(f"chairlift {chairlift.__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Serve open-weight language models by scheduling forward passes, not request groups."""


def main() -> None:
    """Run the command line and exit with its status: 2 for wrong usage or settings, 1 for a failure."""
    try:
        status: object = cli.main(prog_name="chairlift", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ChairliftError as error:
        click.echo("Error: " + printable(error.message, keep="\n"), err=True)
        sys.exit(_USAGE_STATUS if isinstance(error, ConfigurationError) else 1)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_INTERRUPTED_STATUS)
    sys.exit(status if isinstance(status, int) else 0)
