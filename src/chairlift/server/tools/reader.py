"""Reads one choice's text as it comes: reasoning first, then content and calls.

Knows nothing of how these are sent.
"""

from collections.abc import Callable
from dataclasses import dataclass

from chairlift.server.tools.json_text import is_json
from chairlift.server.tools.pieces import CallArguments, CallStart, Content, Piece, Reasoning
from chairlift.server.tools.reasoning import Opening, ReasoningSplitter
from chairlift.server.tools.scanning import Scanner


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How the answers to one request are read.

    Args:
        opening: where reasoning is; ``None`` if it is not told apart.
        scanner: makes a reader of calls; ``None`` if no calls are looked for.
        max_calls: further calls are left out; ``None`` keeps all.
        shows_reasoning: whether reasoning is passed on.
        is_forced: a grammar leaves nothing but calls, so what is no call is the beginning of one that was cut.
        takes_only_known: what calls none of the tools is content, as it has a form that may look like a call.
    """

    opening: Opening | None = None
    scanner: Callable[[], Scanner] | None = None
    max_calls: int | None = None
    shows_reasoning: bool = True
    is_forced: bool = False
    takes_only_known: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self.opening in (None, "none") and self.scanner is None


class AnswerReader:
    """The text of one choice, in pieces of any size, to what it consists of."""

    def __init__(self, plan: ReadingPlan) -> None:
        self._plan = plan
        self._splitter = None if plan.opening is None else ReasoningSplitter(plan.opening)
        self._scanner = None if plan.scanner is None else plan.scanner()
        if self._scanner is not None:
            self._scanner.takes_only_known = plan.takes_only_known
        self._arguments: dict[int, str] = {}

    def read(self, text: str, *, is_final: bool = False) -> list[Piece]:
        """Take more text and return what is certain now; with ``is_final`` everything that is left."""
        pieces: list[Piece] = []
        if self._splitter is not None:
            reasoning, text = self._splitter.read(text, is_final=is_final)
            if reasoning and self._plan.shows_reasoning:
                pieces.append(Reasoning(reasoning))
        if self._scanner is None:
            if text:
                pieces.append(Content(text))
            return pieces
        found = self._scanner.read(text) if text else []
        if is_final:
            found.extend(self._scanner.end())
        pieces.extend(piece for piece in found if self._is_wanted(piece))
        self._note(found)
        return pieces

    def finish_reason(self, reason: str | None) -> str | None:
        """Why the choice ended, for whoever asked for tools: ``tool_calls`` only if it ended by itself after calls that
        are complete.
        """
        if reason != "stop" or not self._arguments:
            return reason
        return "tool_calls" if all(map(is_json, self._arguments.values())) else reason

    def _is_wanted(self, piece: Piece) -> bool:
        if isinstance(piece, Content):
            return not self._plan.is_forced
        limit = self._plan.max_calls
        return limit is None or not isinstance(piece, CallStart | CallArguments) or piece.index < limit

    def _note(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if not self._is_wanted(piece):
                continue
            if isinstance(piece, CallStart):
                self._arguments[piece.index] = ""
            elif isinstance(piece, CallArguments):
                self._arguments[piece.index] += piece.text
