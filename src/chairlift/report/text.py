"""Text that somebody else wrote, made fit to be shown: what would move a terminal's cursor or recolour it is spelt out.

Knows nothing of where it is shown.
"""

import unicodedata


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with control characters, marks of direction and lone surrogates as ``\x1b`` and the like.

    ``keep``: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(char if char in keep or _is_shown(char) else _spelt(char) for char in text)


def _is_shown(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _spelt(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
