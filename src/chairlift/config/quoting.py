"""How a message quotes a value that cannot be: in full if it is short, and never by what Python says of it.

Knows nothing of settings.
"""

import re

_MAX_CHARS = 200
_TOO_MANY_DIGITS = re.compile(r"Exceeds the limit \(\d+ digits\) for integer string conversion.*", re.DOTALL)


def quoted(value: object) -> str:
    """Return the value as it would be written, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, or what is nested as deeply
        text = "a number of too many digits" if isinstance(value, int) else "a value that is too long"
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"


def toml_fault(error: ValueError | RecursionError) -> str:
    """Say why a text is no TOML."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return _TOO_MANY_DIGITS.sub("a number has too many digits", str(error))
