"""Answers, errors and events of /v1/messages, field for field as Anthropic writes them.

Knows nothing of how they come about.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct):
    """Text of the answer."""

    text: str
    type: Literal["text"] = "text"


class ThinkingBlock(msgspec.Struct):
    """What the model thought; there is nothing to sign."""

    thinking: str
    type: Literal["thinking"] = "thinking"
    signature: str = ""


class ToolUseBlock(msgspec.Struct):
    """A call of a tool."""

    id: str
    name: str
    input: Any
    type: Literal["tool_use"] = "tool_use"


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(msgspec.Struct):
    """Tokens of one answer; those from the cache are not among ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class AssistantMessage(msgspec.Struct):
    """Answer of /v1/messages."""

    id: str
    model: str
    content: list[ContentBlock]
    usage: MessagesUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(msgspec.Struct):
    """Answer of /v1/messages/count_tokens."""

    input_tokens: int


class MessagesErrorDetail(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesError(msgspec.Struct):
    """Body of every answer that is not a success, and last event of a stream that failed."""

    error: MessagesErrorDetail
    type: Literal["error"] = "error"


class BlockDelta(msgspec.Struct, omit_defaults=True):
    """What is new in a block: one of these."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"]
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET


class MessageDelta(msgspec.Struct):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessagesEvent(msgspec.Struct, omit_defaults=True):
    """An event of a stream: ``type`` says which of the other fields there are."""

    type: str
    message: AssistantMessage | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: ContentBlock | UnsetType = UNSET
    delta: BlockDelta | MessageDelta | UnsetType = UNSET
    usage: MessagesUsage | UnsetType = UNSET
