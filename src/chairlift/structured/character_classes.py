r"""Gives ``\d``, ``\w`` and ``\s`` the meaning that they have in ECMA-262, and so in JSON Schema.

Knows nothing of grammars. The library takes them for classes of Unicode: ``\d`` for the digits of all scripts, which
whoever reads a number does not expect.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

_DIGITS = "0-9"
_WORD = "A-Za-z0-9_"
_SPACE = r"\t-\r\x20\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"

_MEANINGS = {
    "\\d": f"[{_DIGITS}]",
    "\\D": f"[^{_DIGITS}]",
    "\\w": f"[{_WORD}]",
    "\\W": f"[^{_WORD}]",
    "\\s": f"[{_SPACE}]",
    "\\S": f"[^{_SPACE}]",
}
"""Classes may stand within classes, so they are the same inside brackets and outside."""

CLASS_IN_JSON = re.compile(r"\\\\[dDwWsS]")
"""How such a class stands in JSON."""

_PIECES = re.compile(r"\\.|.", re.DOTALL)

_KEYWORDS_OF_NAMES = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""What stands below them are names, whatever they look like."""
_KEYWORDS_OF_DATA = frozenset({"const", "default", "enum", "example", "examples"})


def with_ecma_classes(pattern: str) -> str:
    """The expression for a library whose classes are those of Unicode."""
    if "\\" not in pattern:
        return pattern
    pieces: list[str] = []
    for piece in _PIECES.findall(pattern):
        meaning = _MEANINGS.get(piece)
        if meaning is not None and pieces[-1:] == ["-"] and pieces[-2:-1] != ["-"]:
            # No range ends with a class, so this is the character, as for ECMA-262 and unlike before a bracket.
            pieces[-1] = "\\-"
        pieces.append(piece if meaning is None else meaning)
    return "".join(pieces)


def with_ecma_patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a JSON schema with all its expressions written for such a library."""
    holder: list[Any] = [schema]
    # Not by calling itself: a schema may be nested as deeply as it fits into a request.
    to_copy: list[tuple[Any, Any, bool]] = [(holder, 0, False)]
    while to_copy:
        container, place, is_of_names = to_copy.pop()
        value = container[place]
        if isinstance(value, list):
            copied: Any = list(cast("list[Any]", value))
            to_copy.extend((copied, index, False) for index in range(len(copied)))
        elif isinstance(value, Mapping):
            members = cast("Mapping[str, Any]", value)
            copied = dict(members) if is_of_names else _with_own_patterns(members)
            to_copy.extend(
                (copied, key, not is_of_names and key in _KEYWORDS_OF_NAMES)
                for key in copied
                if is_of_names or key not in _KEYWORDS_OF_DATA
            )
        else:
            continue
        container[place] = copied
    return holder[0]


def _with_own_patterns(members: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(members)
    pattern = written.get("pattern")
    if isinstance(pattern, str):
        written["pattern"] = with_ecma_classes(pattern)
    named: Any = written.get("patternProperties")
    if isinstance(named, Mapping):
        by_pattern: dict[str, Any] = {}
        for pattern, schema in cast("Mapping[str, Any]", named).items():
            same = with_ecma_classes(pattern)
            by_pattern[same] = {"allOf": [by_pattern[same], schema]} if same in by_pattern else schema
        written["patternProperties"] = by_pattern
    return written
