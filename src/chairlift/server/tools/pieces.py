"""What an answer consists of, piece by piece. Knows nothing of how models write it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call, which are JSON once they are complete."""

    index: int
    text: str


Piece: TypeAlias = Reasoning | Content | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Assembled:
    """All pieces of one answer, joined."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list[Call])

    def add(self, pieces: Iterable[Piece]) -> None:
        """Append pieces."""
        for piece in pieces:
            match piece:
                case Reasoning():
                    self.reasoning += piece.text
                case Content():
                    self.content += piece.text
                case CallStart():
                    self.calls.append(Call(piece.name))
                case CallArguments():
                    self.calls[piece.index].arguments += piece.text
