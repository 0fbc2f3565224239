"""Typed reading of a model's own configuration, with errors that name the key.

Knows nothing of what the keys mean.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.errors import ModelLoadError


class Fields:
    """Values by key, as a file gave them. ``null`` counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.value(key) is not None

    def value(self, key: str) -> Any:
        """The value as it is, ``None`` if absent."""
        return self._values.get(self._prefix + key)

    def has_key(self, key: str) -> bool:
        """Whether the key is there at all, even with ``null``."""
        return self._prefix + key in self._values

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number; required where there is no default."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
            raise self._wrong(key, "a whole number", value)
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number; required where there is no default."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def refuse_unless(self, key: str, *allowed: Any) -> None:
        """Refuse a value that would need computing that does not exist here; an absent key is fine.

        Raises:
            ModelLoadError: the value is none of the allowed ones.
        """
        value = self.value(key)
        if value is not None and value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed) or "none"
            raise ModelLoadError(f"{self._prefix}{key}={value!r} is not supported; supported: {choices}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.value(key)
        if value is not None:
            return value
        if default is None:
            raise ModelLoadError(f"{self._where} lacks {self._prefix}{key}")
        return default

    def _wrong(self, key: str, expected: str, value: Any) -> ModelLoadError:
        return ModelLoadError(f"{self._prefix}{key} in {self._where} must be {expected}, got {value!r}")
