"""Answers and stream chunks, field for field as OpenAI and vLLM write them. Knows nothing of how they come about.

``msgspec`` structs: encoding one costs about a microsecond, and a stream encodes one per token.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

encode = msgspec.json.Encoder().encode
"""JSON bytes of any answer here."""


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """What generated tokens are."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens of one request, all its prompts and choices together; text completions have no reasoning."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET

    @property
    def reasoning_tokens(self) -> int:
        """Those of ``completion_tokens`` that were generated before the answer began."""
        details = self.completion_tokens_details
        return 0 if isinstance(details, UnsetType) else details.reasoning_tokens


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities of a text's tokens: one entry for each in every list; ``None`` where nothing came before."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct):
    """How likely the model found a token of the prompt, or one that might have stood there."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By token id, for each token of a prompt."""


class ChatTopLogprob(msgspec.Struct):
    """A token that might have come."""

    token: str
    bytes: list[int]
    logprob: float


class ChatTokenLogprob(msgspec.Struct):
    """A token that came."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a message's tokens, those that are not shown in its text included."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionChoice(msgspec.Struct):
    """A choice, or what is new in it; ``stop_reason`` is left out of chunks that end nothing."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """Answer of /v1/completions, and chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    service_tier: str | UnsetType = UNSET


class CalledFunction(msgspec.Struct):
    """What is called, and with which arguments: JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct):
    """The assistant's turn; ``content`` is ``null`` where it only calls tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """A choice of a chat answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """What is new in a call: its name at first, then its arguments piece by piece."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """What is new in one of the calls of a message."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What is new in a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct):
    """What is new in a choice of a chat stream; ``stop_reason`` is left out of chunks that end nothing."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """Chunk of a /v1/chat/completions stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class Model(msgspec.Struct):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    display_name: str
    """This and what follows is Anthropic's."""
    created_at: str
    max_input_tokens: int
    max_tokens: int
    type: Literal["model"] = "model"
    lifecycle: Literal["active"] = "active"


class ModelList(msgspec.Struct):
    """Answer of /v1/models: all in one page."""

    object: Literal["list"]
    data: list[Model]
    first_id: str
    last_id: str
    has_more: Literal[False] = False


class Tokens(msgspec.Struct):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """Answer of /detokenize."""

    prompt: str
