"""Following JSON character by character. Knows nothing of what it says."""

import json
from collections.abc import Callable
from typing import Any

_SPACE = frozenset(" \t\r\n")


class JsonValue:
    """Finds the end of one JSON value in text that comes in pieces; brackets are counted, not matched by kind."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self._is_bare = False
        self._has_begun = False

    def take(self, text: str, start: int) -> int:
        """Read on from ``start`` and return where the value, or the text, ends."""
        for place in range(start, len(text)):
            character = text[place]
            if self._is_string:
                self._take_in_string(character)
            elif self._is_bare and (character in ",}]" or character in _SPACE):
                self.is_complete = True
                return place
            else:
                self._take_outside(character)
            if self.is_complete:
                return place + 1
        return len(text)

    def _take_in_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_string = False
            self.is_complete = self._depth == 0

    def _take_outside(self, character: str) -> None:
        if character == '"':
            self._is_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_complete = self._depth <= 0
        elif self._depth == 0 and character not in _SPACE:
            self._is_bare = True


class CallBody:
    """Reads ``{"name": ..., "arguments": {...}}``, and gives the arguments on while they come.

    A call is certain once its name is known and its arguments begin, or once the object ends; until then it may still
    turn out to be something else.

    Args:
        start: is called with the name when the call is certain.
        more: is called with each further piece of the arguments.
        names: names that a body without arguments must have; ``None`` takes any.
        needs_known_name: a body whose name is none of these is no call.
    """

    ARGUMENT_KEYS = frozenset({"arguments", "parameters"})

    def __init__(
        self,
        start: Callable[[str], None],
        more: Callable[[str], None],
        names: frozenset[str],
        *,
        needs_known_name: bool = False,
    ) -> None:
        self._start = start
        self._more = more
        self._names = names
        self._needs_known_name = needs_known_name
        self.is_complete = False
        self.is_started = False
        self.has_failed = False
        self._expect: Callable[[str, int], int] = self._take_open
        self._value: JsonValue | None = None
        self._key = ""
        self._text = ""
        self._name: str | None = None
        self._pending = ""
        self._has_arguments = False

    def take(self, text: str, start: int = 0) -> int:
        """Read on from ``start``; return where the object, or what makes sense, or the text ends."""
        place = start
        while place < len(text) and not self.is_complete and not self.has_failed:
            if self._value is None and text[place] in _SPACE:
                place += 1
            else:
                place = self._expect(text, place)
        return place

    def _take_open(self, text: str, place: int) -> int:
        return self._take_one(text, place, "{", self._take_key)

    def _take_colon(self, text: str, place: int) -> int:
        return self._take_one(text, place, ":", self._take_value)

    def _take_one(self, text: str, place: int, wanted: str, then: Callable[[str, int], int]) -> int:
        if text[place] != wanted:
            self.has_failed = True
            return place
        self._expect = then
        return place + 1

    def _take_key(self, text: str, place: int) -> int:
        if self._value is None:
            if text[place] == "}" and not self._key:
                return self._close(place)
            if text[place] != '"':
                self.has_failed = True
                return place
            self._value, self._text = JsonValue(), ""
        end = self._value.take(text, place)
        self._text += text[place:end]
        if self._value.is_complete:
            key = _decoded(self._text)
            self._value = None
            self._key = key if isinstance(key, str) else "?"
            self._expect = self._take_colon
        return end

    def _take_value(self, text: str, place: int) -> int:
        if self._value is None:
            self._value, self._text = JsonValue(), ""
            self._has_arguments = self._has_arguments or self._is_argument_key
        end = self._value.take(text, place)
        if self._is_argument_key and text[place:end]:
            self._take_arguments(text[place:end])
        elif not self._is_argument_key:
            self._text += text[place:end]
        if self._value.is_complete:
            self._end_value()
        return end

    def _end_value(self) -> None:
        if self._is_argument_key and not self.is_started:
            self._pending = _plain_arguments(self._pending)
            self._try_start()
        elif self._key == "name":
            name = _decoded(self._text)
            if not isinstance(name, str) or not name or (self._needs_known_name and name not in self._names):
                self.has_failed = True
            self._name = name if isinstance(name, str) else None
            if self._has_arguments:
                self._try_start()
        self._value = None
        self._expect = self._take_comma

    def _take_comma(self, text: str, place: int) -> int:
        if text[place] == "}":
            return self._close(place)
        return self._take_one(text, place, ",", self._take_key)

    def _close(self, place: int) -> int:
        if not self.is_started and not self._has_arguments and self._name in self._names:
            self._pending = "{}"
            self._try_start()
        if self.is_started:
            self.is_complete = True
            return place + 1
        self.has_failed = True
        return place

    @property
    def _is_argument_key(self) -> bool:
        return self._key in self.ARGUMENT_KEYS

    def _take_arguments(self, text: str) -> None:
        if self.is_started:
            self._more(text)
            return
        self._pending += text
        # Only an object is passed on while it comes: text and null are written as one when they are whole.
        if self._pending.startswith("{"):
            self._try_start()

    def _try_start(self) -> None:
        if self._name is None or self.is_started or self.has_failed:
            return
        self.is_started = True
        self._start(self._name)
        if self._pending:
            self._more(self._pending)


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _plain_arguments(text: str) -> str:
    """Arguments as an object: some models write them as text that holds one, or as null if there are none."""
    value = _decoded(text)
    if value is None:
        return "{}"
    return value if isinstance(value, str) and isinstance(_decoded(value), dict) else text


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return ...
