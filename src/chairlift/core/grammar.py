"""What the output of a request must look like, as a text that a grammar library compiles.

Knows nothing of grammars: the core carries the text from whoever asks to whoever enforces it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar's text, and the request field that asked for it, for error messages.

    :mod:`chairlift.structured.sources` makes the text; equal texts are compiled once.
    """

    source: str
    param: str = "structured_outputs"
    owners: tuple[tuple[str, str, str], ...] = ()
    """For parts of the text that stand for something smaller than that field: (name of the part, what it is in words,
    its own field)."""
