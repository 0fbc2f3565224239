"""Reading text that comes in pieces of any size, so that where it was cut changes nothing.

Knows nothing of formats. A scanner decides only what no further text could change: it holds back what may be the
beginning of a marker, and white space of which it does not know yet what it stands before.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from chairlift.server.tools.pieces import CallArguments, CallStart, Content, Piece

_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")


class Scanner(ABC):
    """Base of all readers of calls: a buffer of text that is not understood yet, and a state that takes from it."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = frozenset(names)
        self.takes_only_known = False
        """Whether what calls none of the tools is content; otherwise whoever asked is told of it."""
        self.num_calls = 0
        self.buffer = ""
        self.is_final = False
        self.state: Callable[[], bool] = self.begin
        self._pieces: list[Piece] = []
        self._held_space = ""
        self._is_after_call = False
        self._has_text = False

    @abstractmethod
    def begin(self) -> bool:
        """The first state. A state takes what it can from the buffer, and says whether there was anything to take."""
        ...

    def read(self, text: str) -> list[Piece]:
        """Take more text and return what is certain now."""
        self.buffer += text
        return self._run()

    def end(self) -> list[Piece]:
        """No more text comes: return the rest."""
        self.is_final = True
        pieces = self._run()
        if self.buffer:
            self.put_text(self.buffer)
            self.buffer = ""
        if self._held_space and not self.num_calls:
            self._pieces.append(Content(self._held_space))
        self._held_space = ""
        pieces.extend(self._take_pieces())
        return pieces

    def put_text(self, text: str) -> None:
        """The answer goes on with this text. White space around calls belongs to their format and is left out;
        one line break keeps what was before them from what is behind.
        """
        text = self._held_space + text
        if self._is_after_call:
            text = text.lstrip()
        kept = text.rstrip()
        self._held_space = text[len(kept) :]
        if kept:
            if self._is_after_call and self._has_text:
                kept = "\n" + kept
            self._is_after_call = False
            self._has_text = True
            self._pieces.append(Content(kept))

    def put_call(self, name: str) -> int:
        """A call begins; returns its index."""
        self._held_space = ""
        self._is_after_call = True
        index = self.num_calls
        self.num_calls += 1
        self._pieces.append(CallStart(index, name))
        return index

    def put_arguments(self, index: int, text: str) -> None:
        """The arguments of a call go on."""
        if text:
            self._pieces.append(CallArguments(index, text))

    def take_text_until(self, *markers: str) -> str | None:
        """Pass on text up to the first marker and return that marker, taken from the buffer; ``None`` if none is there
        yet, with all text passed on that cannot belong to one.
        """
        found = [(place, marker) for marker in markers if (place := self.buffer.find(marker)) >= 0]
        if found:
            place, marker = min(found)
            self.put_text(self.buffer[:place])
            self.buffer = self.buffer[place + len(marker) :]
            return marker
        kept = 0 if self.is_final else max(length_held(self.buffer, marker) for marker in markers)
        cut = len(self.buffer) - kept
        if cut:
            self.put_text(self.buffer[:cut])
            self.buffer = self.buffer[cut:]
        return None

    def skip_space(self) -> bool:
        """Drop white space at the front of the buffer; whether anything else is there."""
        self.buffer = self.buffer.lstrip()
        return bool(self.buffer)

    def take_optional(self, marker: str) -> bool | None:
        """Take a marker from the front of the buffer: whether it was there; ``None`` if that is not certain yet."""
        if self.buffer.startswith(marker):
            self.buffer = self.buffer[len(marker) :]
            return True
        return None if not self.is_final and marker.startswith(self.buffer) else False

    def is_name(self, text: str) -> bool:
        """Whether a text names one of the tools, or could name any."""
        return text in self.names or (not self.takes_only_known and _NAME.fullmatch(text) is not None)

    def may_become_name(self, text: str) -> bool:
        """Whether a name may come of a text and what follows it, white space between them left out."""
        return not text or self.is_name(text.rstrip()) or any(name.startswith(text) for name in self.names)

    def drop_cut(self, *markers: str) -> bool:
        """Drop a marker that the end of the answer cut; whether there was one."""
        if not self.is_final or not self.buffer or not any(marker.startswith(self.buffer) for marker in markers):
            return False
        self.buffer = ""
        return True

    def _run(self) -> list[Piece]:
        while self.state():
            pass
        return self._take_pieces()

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def length_held(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``marker``."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
