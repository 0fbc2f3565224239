"""Counts the tokens of one choice's reasoning as they come. Knows nothing of how reasoning is shown.

A token belongs to the reasoning if it begins before the reasoning ends, so both tags do::

    <think>  I  see  </think>  It  is
    [------- reasoning ------) answer
"""

from bisect import bisect_left

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.tools.reasoning import THINK_END, THINK_START, Opening


class ReasoningCount:
    """However the deltas are cut or merged, the count at the end is the same, and meanwhile it only grows.

    Args:
        opening: where the answer begins; the same that tells its text apart.
    """

    def __init__(self, opening: Opening) -> None:
        self.num_tokens = 0
        """Tokens that are certain to be reasoning."""
        self._state = {"inside": "inside", "possible": "begin", "none": "done"}[opening]
        self._num_chars = 0
        self._unread = ""
        """The end of the text so far in which a tag may have begun."""
        self._offsets: list[int] = []
        """Where the tokens begin of which nobody knows yet."""

    def add(self, delta: ChoiceDelta) -> None:
        """Take what is new in the choice."""
        if self._state == "done":
            return
        self._offsets.extend(delta.text_offsets)
        self._num_chars += len(delta.text)
        self._unread += delta.text
        is_final = delta.finish_reason is not None
        if self._state == "begin":
            self._find_start(is_final=is_final)
        if self._state == "inside":
            self._find_end(is_final=is_final)

    def _find_start(self, *, is_final: bool) -> None:
        begun = self._unread.lstrip()
        if begun.startswith(THINK_START):
            self._unread = begun[len(THINK_START) :]
            self._state = "inside"
        elif is_final or not THINK_START.startswith(begun):
            self._end()

    def _find_end(self, *, is_final: bool) -> None:
        place = self._unread.find(THINK_END)
        if place >= 0:
            self._settle(self._num_chars - len(self._unread) + place + len(THINK_END))
            self._end()
        elif is_final:  # cut in the middle of it
            self.num_tokens += len(self._offsets)
            self._end()
        else:
            # It ends behind this text. Tokens further on are those whose text is held back.
            self._settle(self._num_chars + 1)
            self._unread = self._unread[1 - len(THINK_END) :]

    def _settle(self, end: int) -> None:
        """Count the tokens that begin before this place."""
        num_before = bisect_left(self._offsets, end)
        self.num_tokens += num_before
        del self._offsets[:num_before]

    def _end(self) -> None:
        self._state = "done"
        self._unread = ""
        self._offsets.clear()
