"""Answers and events of /v1/responses, field for field as OpenAI writes them. Knows nothing of how they come about."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct):
    """A message's text."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct):
    """What the model thought."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class MessageItem(msgspec.Struct):
    """A message of the assistant."""

    id: str
    content: list[OutputText]
    status: ItemStatus
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct):
    """Reasoning before a message or a call."""

    id: str
    content: list[ReasoningText]
    status: ItemStatus
    summary: list[Any] = []
    type: Literal["reasoning"] = "reasoning"


class FunctionCallItem(msgspec.Struct):
    """A call of a tool."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    type: Literal["function_call"] = "function_call"


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputDetails(msgspec.Struct):
    """Where input tokens came from."""

    cached_tokens: int


class OutputDetails(msgspec.Struct):
    """What output tokens were."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct):
    """Answer of /v1/responses, and part of events of its stream."""

    id: str
    created_at: int
    model: str
    output: list[OutputItem]
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[Any]
    object: Literal["response"] = "response"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    max_output_tokens: int | None = None
    previous_response_id: None = None
    temperature: float | None = None
    top_p: float | None = None
    text: Any = None
    reasoning: Any = None
    truncation: Literal["disabled"] = "disabled"
    store: Literal[False] = False
    background: Literal[False] = False
    service_tier: str | UnsetType = UNSET
    user: str | None = None
    usage: ResponseUsage | None = None


class ResponseEvent(msgspec.Struct, omit_defaults=True):
    """An event of a stream: ``type`` says which of the other fields there are."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
