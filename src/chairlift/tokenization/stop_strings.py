"""Finds stop strings in text that arrives in pieces, and holds back what may become one.

Knows nothing of tokens beyond their count.

::

    text so far   [ emitted to the client | held: longest suffix that begins a stop string | not yet arrived )

The result depends on the text alone, never on how it was cut into pieces: the stop string that is complete first wins,
and among those complete at the same character the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that may go out now, and the stop string that was found, if any."""

    emit: str
    stopped: str | None = None


class StopChecker:
    """Watches the text of one choice for its stop strings.

    Args:
        stop: the strings to watch for, none of them empty.
        include_stop: whether the stop string itself is part of the answer.
        min_tokens: a stop string that is complete before this many output tokens does not count.
    """

    __slots__ = ("_held", "_include_stop", "_matchers", "_min_tokens", "_stopped")

    def __init__(self, stop: tuple[str, ...] = (), include_stop: bool = False, min_tokens: int = 0) -> None:
        # Longest first, so that of two stop strings ending at one character the longer is reported.
        self._matchers = [_Matcher(text) for text in sorted(set(stop), key=lambda text: (-len(text), text))]
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._held = ""
        self._stopped = False

    def push(self, text: str, num_output_tokens: int) -> StopResult:
        """Take the text that output token number ``num_output_tokens`` added.

        Changes what is held back. After a stop string was found, nothing is emitted any more.
        """
        if self._stopped:
            return StopResult("")
        if not self._matchers:
            return StopResult(text)
        may_stop = num_output_tokens >= self._min_tokens
        seen = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            found = self._advance(character)
            if found is not None and may_stop:
                self._stopped = True
                self._held = ""
                return StopResult(seen[: end if self._include_stop else end - len(found)], found)
        num_held = max(matcher.num_matched for matcher in self._matchers)
        self._held = seen[len(seen) - num_held :]
        return StopResult(seen[: len(seen) - num_held])

    def flush(self) -> str:
        """Give out what is still held back, because no more text will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        found = None
        for matcher in self._matchers:
            if matcher.advance(character) and found is None:
                found = matcher.text
        return found


class _Matcher:
    """Knuth, Morris and Pratt's search for one string, one character at a time.

    ``num_matched`` is the length of the longest beginning of ``text``, short of all of it, that the input ends with.
    """

    __slots__ = ("_borders", "num_matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._borders = _border_lengths(text)

    def advance(self, character: str) -> bool:
        """Take one character; true when it completes the string."""
        num_matched = self.num_matched
        while num_matched and self.text[num_matched] != character:
            num_matched = self._borders[num_matched - 1]
        if self.text[num_matched] == character:
            num_matched += 1
        is_complete = num_matched == len(self.text)
        self.num_matched = self._borders[num_matched - 1] if is_complete else num_matched
        return is_complete


@lru_cache(maxsize=512)
def _border_lengths(text: str) -> Sequence[int]:
    """For each prefix of the text, the length of its longest proper prefix that is also its suffix.

    Kept, because every choice of every prompt of a request looks for the same strings.
    """
    lengths = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = lengths[length - 1]
        if text[index] == text[length]:
            length += 1
        lengths[index] = length
    return tuple(lengths)
