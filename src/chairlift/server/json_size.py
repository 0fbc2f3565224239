"""How many values a JSON text holds, without making any of them, and how deep. Knows nothing of what they mean.

A parser keeps Python's lock from the first byte to the last, so that the event loop stands still meanwhile. Strings
are fast, a few milliseconds per MiB; what takes long is to make millions of small values. They are counted beforehand,
in slices that take less than a millisecond each, by the characters that come before or between them.
"""

from collections.abc import Iterable
from typing import cast

CONTAINER_WEIGHT = 8
"""An array or object takes about as long to make, and to free again, as so many numbers."""
KEY_WEIGHT = 4
"""So does a key of an object."""

_SLICE_BYTES = 65_536


def weigh_values(text: bytes, limit: int) -> int:
    """Values in ``text``, which need not be valid JSON, containers and keys counting as more than one.

    Exact only above the limit; below it the number may be too great, because strings are searched as well.
    """
    weight = sum(_weight(text[start : start + _SLICE_BYTES]) for start in range(0, len(text), _SLICE_BYTES))
    return weight if weight <= limit else _weigh_outside_strings(text)


def has_more_containers(text: bytes, limit: int) -> bool:
    """Whether ``text`` may have more arrays and objects than that; if not, they cannot be nested deeper either."""
    num_containers = 0
    for start in range(0, len(text), _SLICE_BYTES):
        part = text[start : start + _SLICE_BYTES]
        num_containers += part.count(b"[") + part.count(b"{")
        if num_containers > limit:
            return True
    return False


def is_nested_deeper(value: object, limit: int) -> bool:
    """Whether more arrays and objects than that are within each other in what a JSON text stands for."""
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, list | dict)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _weight(part: bytes) -> int:
    num_containers = part.count(b"[") + part.count(b"{")
    return part.count(b",") + CONTAINER_WEIGHT * num_containers + KEY_WEIGHT * part.count(b":")


def _weigh_outside_strings(text: bytes) -> int:
    weight = 0
    is_outside = True
    start = 0
    while start < len(text):
        end = _end_of_slice(text, start)
        part = text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = part.split(b'"')
        weight += sum(map(_weight, pieces[0 if is_outside else 1 :: 2]))
        if len(pieces) % 2 == 0:
            is_outside = not is_outside
        start = end
    return weight


def _end_of_slice(text: bytes, start: int) -> int:
    """Where a slice may end: not between a backslash and what it stands before."""
    end = min(start + _SLICE_BYTES, len(text))
    num_backslashes = len(text[start:end]) - len(text[start:end].rstrip(b"\\"))
    return min(end + num_backslashes % 2, len(text))
