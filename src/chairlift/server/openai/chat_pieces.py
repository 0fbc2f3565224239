"""From what a model's text consists of to the fields of chat messages and chunks. Knows nothing of streams."""

import secrets
import string
from collections.abc import Callable, Iterable

from msgspec import UNSET

from chairlift.server.openai.responses import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from chairlift.server.tools.pieces import Assembled, CallArguments, CallStart, Content, Piece, Reasoning

_ALPHANUMERIC = string.ascii_letters + string.digits
_NUM_ID_CHARS = 9
"""Mistral's templates take ids of this length only, and others take any."""


def make_call_id() -> str:
    """An id for a call of a tool."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(_NUM_ID_CHARS))


def to_message(pieces: Iterable[Piece], *, has_tools: bool) -> ChatMessage:
    """A whole message; its content is ``null`` where there is none beside calls."""
    whole = Assembled()
    whole.add(pieces)
    calls = [ToolCall(make_call_id(), CalledFunction(call.name, call.arguments)) for call in whole.calls]
    return ChatMessage(
        "assistant",
        None if not whole.content and (calls or (has_tools and whole.reasoning)) else whole.content,
        reasoning_content=whole.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def to_deltas(pieces: Iterable[Piece], call_id: Callable[[], str] = make_call_id) -> list[ChatDelta]:
    """What is new in a message, in order."""
    return [_to_delta(piece, call_id) for piece in pieces]


def _to_delta(piece: Piece, call_id: Callable[[], str]) -> ChatDelta:
    match piece:
        case Reasoning():
            return ChatDelta(reasoning_content=piece.text)
        case Content():
            return ChatDelta(content=piece.text)
        case CallStart():
            function = FunctionDelta(name=piece.name, arguments="")
            return ChatDelta(tool_calls=[ToolCallDelta(piece.index, id=call_id(), type="function", function=function)])
        case CallArguments():
            return ChatDelta(tool_calls=[ToolCallDelta(piece.index, function=FunctionDelta(arguments=piece.text))])
