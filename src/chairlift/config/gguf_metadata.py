"""The key-value header of a GGUF file, read in milliseconds.

Knows nothing of tensors. The ``gguf`` package reads the same header, but makes several arrays per vocabulary entry,
which takes seconds; loading weights goes through that package, everything else through here.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

from chairlift.errors import ModelLoadError

GgufValue = str | int | float | bool | list[str] | list[int] | list[float] | list[bool]

_T = TypeVar("_T")
_HEADER = struct.Struct("<4sIQQ")
_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")
_ARRAY_HEADER = struct.Struct("<IQ")
_STRING_TYPE = 8
_ARRAY_TYPE = 9
_SCALARS = {
    type_id: struct.Struct(f"<{code}")
    for type_id, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_VERSIONS = (2, 3)


class GgufMetadata(Mapping[str, GgufValue]):
    """What a GGUF file says about its model; lookups by type refuse a value of another type."""

    def __init__(self, values: Mapping[str, GgufValue], origin: str) -> None:
        self._values = values
        self._origin = origin

    def __getitem__(self, key: str) -> GgufValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def string(self, key: str) -> str | None:
        """The text under a key, ``None`` if absent."""
        return self._typed(key, str)

    def integer(self, key: str) -> int | None:
        """The whole number under a key, ``None`` if absent."""
        return self._typed(key, int)

    def flag(self, key: str) -> bool | None:
        """The truth value under a key, ``None`` if absent."""
        return self._typed(key, bool)

    def strings(self, key: str) -> list[str] | None:
        """The texts under a key, ``None`` if absent."""
        return self._array(key, str)

    def integers(self, key: str) -> list[int] | None:
        """The whole numbers under a key, ``None`` if absent."""
        return self._array(key, int)

    def floats(self, key: str) -> list[float] | None:
        """The numbers under a key, ``None`` if absent."""
        return self._array(key, float)

    def _typed(self, key: str, kind: type[_T]) -> _T | None:
        value = self._values.get(key)
        if value is None or isinstance(value, kind):
            return value
        raise self._mismatch(key, type(value).__name__, kind.__name__)

    def _array(self, key: str, kind: type[_T]) -> list[_T] | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._mismatch(key, type(value).__name__, f"list of {kind.__name__}")
        # All items of a GGUF array have one type, so the first speaks for all.
        if value and not isinstance(value[0], kind):
            raise self._mismatch(key, f"list of {type(value[0]).__name__}", f"list of {kind.__name__}")
        return cast("list[_T]", value)

    def _mismatch(self, key: str, found: str, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self._origin}: {key} is a {found}, but must be a {wanted}")


def read_gguf_metadata(path: Path) -> GgufMetadata:
    """Read the whole key-value header of a GGUF file.

    Raises:
        ModelLoadError: the file cannot be read, is not GGUF, is of an unknown version or ends early.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return GgufMetadata(dict(_pairs(data)), str(path))
    except (OSError, ValueError, struct.error) as error:
        raise ModelLoadError(f"{path} is not a readable GGUF file: {error}") from error


def _pairs(data: mmap.mmap) -> Iterator[tuple[str, GgufValue]]:
    magic, version, _, num_pairs = _HEADER.unpack_from(data)
    if magic != b"GGUF" or version not in _VERSIONS:
        raise ValueError(f"it begins with {magic!r} version {version}, but GGUF version 2 or 3 is needed")
    offset = _HEADER.size
    for _ in range(num_pairs):
        key, offset = _read_string(data, offset)
        (type_id,) = _TYPE.unpack_from(data, offset)
        value, offset = _read_value(data, offset + _TYPE.size, type_id)
        yield key, value


def _read_value(data: mmap.mmap, offset: int, type_id: int) -> tuple[GgufValue, int]:
    if type_id == _STRING_TYPE:
        return _read_string(data, offset)
    if type_id == _ARRAY_TYPE:
        item_type, length = _ARRAY_HEADER.unpack_from(data, offset)
        return _read_array(data, offset + _ARRAY_HEADER.size, item_type, length)
    scalar = _SCALARS.get(type_id)
    if scalar is None:
        raise ValueError(f"unknown value type {type_id}")
    return scalar.unpack_from(data, offset)[0], offset + scalar.size


def _read_array(data: mmap.mmap, offset: int, item_type: int, length: int) -> tuple[GgufValue, int]:
    scalar = _SCALARS.get(item_type)
    if scalar is not None:
        end = offset + scalar.size * length
        return [item for (item,) in scalar.iter_unpack(data[offset : _inside(data, end)])], end
    if item_type != _STRING_TYPE:
        raise ValueError(f"arrays of value type {item_type} are not supported")
    texts: list[str] = []
    for _ in range(length):
        text, offset = _read_string(data, offset)
        texts.append(text)
    return texts, offset


def _read_string(data: mmap.mmap, offset: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, offset)
    start = offset + _LENGTH.size
    end = _inside(data, start + length)
    return str(data[start:end], "utf-8"), end


def _inside(data: mmap.mmap, end: int) -> int:
    if end > len(data):
        raise ValueError(f"it is {len(data)} bytes long, but byte {end} is needed")
    return end
