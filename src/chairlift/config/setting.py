"""How a setting is declared: a field of a dataclass with what there is to say about it.

Knows nothing of any setting.
"""

from dataclasses import field
from typing import Any

MAX_MS = 1e9
"""Longest time in milliseconds that a setting may ask for: about eleven days."""


def setting(
    default: Any,
    help_text: str,
    *,
    flags: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    bounds: tuple[float | None, float | None] = (None, None),
    is_secret: bool = False,
) -> Any:
    """Declare a setting: its default, one sentence of help, further flag names and the allowed values.

    ``bounds`` are the least and greatest allowed number; ``is_secret`` keeps the value out of representations.
    """
    return field(
        default=default,
        repr=not is_secret,
        metadata={"help": help_text, "flags": flags, "choices": choices, "bounds": bounds, "is_secret": is_secret},
    )
