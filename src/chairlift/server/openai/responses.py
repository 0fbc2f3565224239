"""Answers and stream chunks, field for field as OpenAI and vLLM write them. Knows nothing of how they come about.

``msgspec`` structs: encoding one costs about a microsecond, and a stream encodes one per token.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

encode = msgspec.json.Encoder().encode
"""JSON bytes of any answer here."""


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of one request, all its prompts and choices together."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionChoice(msgspec.Struct):
    """A choice, or what is new in it; ``stop_reason`` is left out of chunks that end nothing."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET


class Completion(msgspec.Struct):
    """Answer of /v1/completions, and chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatMessage(msgspec.Struct):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """A choice of a chat answer."""

    index: int
    message: ChatMessage
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletion(msgspec.Struct):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What is new in a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct):
    """What is new in a choice of a chat stream; ``stop_reason`` is left out of chunks that end nothing."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct):
    """Chunk of a /v1/chat/completions stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(msgspec.Struct):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct):
    """Answer of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Tokens(msgspec.Struct):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """Answer of /detokenize."""

    prompt: str
