"""Flags of ``chairlift bench serve`` that say what is sent and when.

Knows nothing of what they are made into. Flags that ``vllm bench serve`` has are called and mean the same here.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

MADE = ("random", "prefix_repetition", "conversations")
"""Data sets that are made up here."""
WRITTEN = ("mt-bench", "custom")
"""Data sets that are files of prompts, and are sent as chats."""
DATASETS = (*MADE, "trace", *WRITTEN)

DEFAULT_REQUESTS = 100
"""Requests of a load that has no end of its own."""
_GREATEST_RATE = 1e9

Command = TypeVar("Command", bound=Callable[..., Any])


class Rate(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - older ones are not generic
    """Requests per second: a positive number, or ``inf``."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a rate."""
        try:
            rate = float(value)
        except ValueError:
            rate = math.nan
        if not (0 < rate <= _GREATEST_RATE or rate == math.inf):
            self.fail(f"{value!r} is not a positive number of requests per second, or inf", param, ctx)
        return rate


_POSITIVE = click.FloatRange(0, min_open=True)
_COUNT = click.IntRange(1)

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--dataset-name", type=click.Choice(DATASETS), default="random", show_default=True, help="What is asked."
    ),
    click.option("--dataset-path", type=click.Path(path_type=Path), help="File of trace, mt-bench and custom."),
    click.option(
        "--num-prompts",
        "--num-requests",
        type=_COUNT,
        help=f"Requests in all.  [default: {DEFAULT_REQUESTS}; every prompt of mt-bench and custom]",
    ),
    click.option(
        "--request-rate",
        type=Rate(),
        help="Requests per second; inf keeps --max-concurrency of them on their way.  [default: inf; a trace's own]",
    ),
    click.option(
        "--burstiness",
        type=click.FloatRange(1e-6, 1e6),
        help="Shape of the gamma distribution of gaps: 1 is Poisson, less is burstier.  [default: 1]",
    ),
    click.option("--max-concurrency", type=_COUNT, help="Requests on their way at a time; others wait here."),
    click.option(
        "--ramp-up-strategy", type=click.Choice(["linear", "exponential"]), help="How the rate grows over the run."
    ),
    click.option("--ramp-up-start-rps", type=float, help="Rate at the start of the ramp."),
    click.option("--ramp-up-end-rps", type=float, help="Rate at its end."),
    click.option("--ramp", metavar="S:RATE/...", help="Rates at moments, in a straight line between: 0:1/60:8/90:8."),
    click.option("--duration", "duration_s", type=_POSITIVE, help="Seconds after which nothing more is sent."),
    click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of all that is random."),
    click.option(
        "--same-prompts", is_flag=True, help="Random content is that of every call with this seed, not new each time."
    ),
    click.option("--random-input-len", type=_COUNT, default=1024, show_default=True, help="random: tokens of prompts."),
    click.option("--random-output-len", type=_COUNT, default=128, show_default=True, help="random: tokens of answers."),
    click.option(
        "--random-range-ratio",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        show_default=True,
        help="random: lengths are drawn from [length (1 - r), length (1 + r)].",
    ),
    click.option(
        "--random-prefix-len", type=click.IntRange(0), default=0, help="random: tokens that all prompts begin with."
    ),
    click.option(
        "--prefix-repetition-prefix-len", type=_COUNT, default=256, show_default=True, help="Tokens of each prefix."
    ),
    click.option(
        "--prefix-repetition-suffix-len", type=_COUNT, default=256, show_default=True, help="Tokens after the prefix."
    ),
    click.option(
        "--prefix-repetition-num-prefixes", type=_COUNT, default=10, show_default=True, help="Different prefixes."
    ),
    click.option(
        "--prefix-repetition-output-len", type=_COUNT, default=128, show_default=True, help="Tokens of answers."
    ),
    click.option(
        "--num-turns",
        type=_COUNT,
        default=4,
        show_default=True,
        help="conversations: turns of each; every turn of the user has --random-input-len tokens.",
    ),
    click.option("--think-s", type=click.FloatRange(0), help="Seconds from an answer to the next turn.  [default: 0]"),
    click.option(
        "--output-len", type=_COUNT, default=256, show_default=True, help="mt-bench, custom: tokens of answers at most."
    ),
    click.option("--prefix-file", type=click.Path(path_type=Path), help="Text before each prompt of a file."),
    click.option(
        "--trace", "traces", multiple=True, metavar="FILE[,KEY=VALUE...]", help="As in chairlift simulate; repeatable."
    ),
    click.option("--workload", "workload_path", type=click.Path(path_type=Path), help="TOML file of several streams."),
    click.option("--priority", type=int, help="Tier of all requests that do not say; sent as priority."),
    click.option("--send-priority", is_flag=True, help="Send priorities even if all are 0."),
    click.option(
        "--goodput",
        "goodput",
        multiple=True,
        metavar="NAME:MS...",
        help="Objective of requests that do not say: ttft:500,tpot:50,e2el:10000. Repeatable.",
    ),
)


def load_options(command: Command) -> Command:
    """Add the flags to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
