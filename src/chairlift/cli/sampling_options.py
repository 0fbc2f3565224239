"""Sampling flags of commands that generate. Knows nothing of where the tokens come from."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

SAMPLING_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p")

_OPTIONS = (
    click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Output tokens at most."),
    click.option("--temperature", type=float, default=0.7, show_default=True, help="0 is greedy."),
    click.option("--top-p", type=float, default=1.0, help="Keep the most likely tokens up to this probability."),
    click.option("--top-k", type=int, default=0, help="Keep this many most likely tokens; 0 keeps all."),
    click.option("--min-p", type=float, default=0.0, help="Drop tokens less likely than this times the best one."),
)


def sampling_options(command: Command) -> Command:
    """Add the flags in ``SAMPLING_FLAGS`` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_sampling(flags: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampling flags from a command's values and return them."""
    return {name: flags.pop(name) for name in SAMPLING_FLAGS}
