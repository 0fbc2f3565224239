"""What is wrong with a file that somebody made, in words instead of Python's.

Knows nothing of formats: a reader takes what it needs, and what it could not take says what is wrong.
"""

import json
import re

_NO_WHOLE_NUMBER = re.compile(r"invalid literal for int\(\) with base 10: '?(.*?)'?$", re.DOTALL)
_NO_NUMBER = re.compile(r"could not convert string to float: '?(.*?)'?$", re.DOTALL)
_NO_TIME = re.compile(r"Invalid isoformat string: '?(.*?)'?$", re.DOTALL)
_MAX_CHARS = 200


def in_words(error: Exception) -> str:
    """Say what is wrong with the data that raised this error."""
    words = _in_words(error)
    return words if len(words) <= _MAX_CHARS else f"{words[:_MAX_CHARS]}…"


def _in_words(error: Exception) -> str:
    match error:
        case KeyError():
            return f"the field {error.args[0] if error.args else ''} is missing"
        case json.JSONDecodeError():
            return f"no JSON: {error.msg} at character {error.pos}"
        case UnicodeDecodeError():
            return "no text in UTF-8"
        case RecursionError():
            return "nested too deeply"
        case ArithmeticError():
            return f"a number is out of range: {error}"
        case TypeError() | AttributeError() | IndexError():
            return "a value has another form than the format says"
        case ValueError():
            return _value_in_words(str(error))
        case OSError() if error.strerror:
            return error.strerror
        case EOFError():
            return "the file is cut off"
        case _:
            return str(error) or type(error).__name__


def _value_in_words(said: str) -> str:
    for pattern, kind in ((_NO_WHOLE_NUMBER, "whole number"), (_NO_NUMBER, "number"), (_NO_TIME, "time")):
        if found := pattern.match(said):
            return f"a {kind} is expected, got {found[1] or 'nothing'}"
    return "a number has too many digits" if said.startswith("Exceeds the limit (") else said or "ValueError"
