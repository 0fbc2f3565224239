"""Request bodies, strictly typed: a field has its type or the request is refused. Knows nothing of what fields do.

``null`` behaves as absent. Ranges are checked where the numbers are used; fields that are not here are judged by
:mod:`chairlift.server.openai.fields`.
"""

from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, cast

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from chairlift.server.openai.fields import check_other_fields
from chairlift.server.openai.structure_fields import (
    JsonSchema,
    Part,
    ResponseFormat,
    StructuredOutputs,
    ToolChoice,
    Tools,
)

MAX_DEADLINE_MS = 10**9
"""Longest deadline of a request: about eleven days."""

MAX_ITEMS = 65_536
"""Prompts, messages, parts or stop strings of a request at most, whatever settings allow: a body has room for millions,
and other requests wait while they are read."""

_T = TypeVar("_T")
_List: TypeAlias = Annotated[list[_T], Field(fail_fast=True, max_length=MAX_ITEMS)]
_TokenIds: TypeAlias = Annotated[list[int], Field(fail_fast=True)]
"""Checks of both end at the first wrong item: one error is told."""


class Body(BaseModel):
    """Base of every request body: strict types, finite numbers, other fields accepted only if they ask for nothing."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="after")
    def _check_other_fields(self) -> Self:
        check_other_fields(self.model_extra or {}, type(self).model_fields)
        return self


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _number_or_nothing(value: object) -> object:
    return None if value is False else value


def _prompt_form(value: object) -> str | None:
    if isinstance(value, str):
        return "one text"
    if not isinstance(value, list) or not value:
        return None
    first: object = value[0]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(first, str):
        return "list of texts"
    return "lists of token ids" if isinstance(first, list) else "token ids"


def _content_form(value: object) -> str:
    return "list of parts" if isinstance(value, list) else "one text"


Prompt = Annotated[
    Annotated[str, Tag("one text")]
    | Annotated[_List[str], Tag("list of texts")]
    | Annotated[_TokenIds, Tag("token ids")]
    | Annotated[_List[_TokenIds], Tag("lists of token ids")],
    Discriminator(
        _prompt_form,
        custom_error_type="prompt_form",
        custom_error_message="must be a text, a list of token ids, or a list of either, and not empty",
    ),
]

StringList = Annotated[_List[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])]


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = Field(None, description="End with a chunk that has the usage and no choices.")
    continuous_usage_stats: bool | None = Field(
        None, description="With include_usage: every chunk has the usage so far."
    )


class PromptFields(Body):
    """Whose a request is, how urgent, and how much of its prompt counts: the same for every endpoint that computes."""

    model: str | None = Field(None, description="The served model's name; absent takes it.")
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = Field(
        None,
        description="flex is one tier less urgent and priority one tier more urgent than the others, as far as the "
        "tenant may ask for it; a priority field wins over it.",
    )
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Tier; lower is more urgent. Raised to the most urgent one that the tenant may ask for.",
    )
    ttft_deadline_ms: float | None = Field(
        None,
        gt=0,
        le=MAX_DEADLINE_MS,
        description="Milliseconds from its arrival until its first token, or its vector; without it by then, or no "
        "hope of it, 504.",
    )
    deadline_ms: float | None = Field(
        None,
        gt=0,
        le=MAX_DEADLINE_MS,
        description="Milliseconds from its arrival until its last token; what is there by then is answered, with "
        "finish_reason length and stop_reason deadline.",
    )
    cache_salt: str | None = Field(
        None, min_length=1, max_length=1024, description="Share cached prefixes only with requests of the same salt."
    )
    user: str | None = Field(
        None, description="With --trust-user the tenant, if neither the key nor a header names one; else no effect."
    )
    add_special_tokens: bool | None = Field(None, description="Let the tokenizer add its begin and end tokens.")
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Which side is cut off then: the beginning (left, the default) or the end."
    )


class SamplingFields(PromptFields):
    """Sampling and stopping, the same for both endpoints."""

    stream: bool | None = Field(None, description="Send the answer as server-sent events while it is made.")
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, description="Choices per prompt, at most --max-choices.")
    temperature: float | None = Field(None, description="0 is greedy; 1 by default.")
    top_p: float | None = Field(None, description="Keep the most likely tokens up to this probability.")
    top_k: int | None = Field(None, description="Keep this many most likely tokens; 0 or -1 keeps all.")
    min_p: float | None = Field(None, description="Drop tokens less likely than this times the most likely one.")
    repetition_penalty: float | None = Field(None, description="Divides logits of tokens seen in prompt or output.")
    presence_penalty: float | None = Field(None, description="Subtracted once from logits of output tokens.")
    frequency_penalty: float | None = Field(None, description="Subtracted from logits for each use in the output.")
    logit_bias: dict[str, float] | None = Field(
        None, description="Added to logits, by token id: -100 to 100, for at most --max-logit-bias tokens."
    )
    allowed_token_ids: _TokenIds | None = Field(None, description="Only these tokens may be generated.")
    bad_words: _List[str] | None = Field(None, description="Texts whose tokens must not be generated.")
    seed: int | None = Field(None, description="Makes the request repeatable.")
    stop: StringList | None = Field(None, description="Text, or list of texts, that ends a choice.")
    stop_token_ids: _List[int] | None = Field(None, description="Token ids that end a choice.")
    include_stop_str_in_output: bool | None = Field(None, description="Keep the stop string in the answer.")
    max_tokens: int | None = Field(None, description="Output tokens at most; lowered to what the model length leaves.")
    min_tokens: int | None = Field(None, description="Do not stop before this many output tokens.")
    ignore_eos: bool | None = Field(None, description="Do not end at the model's end tokens.")
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text (the default).")
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        description="Log-probabilities of the prompt's tokens, and of so many most likely ones beside each. They are "
        "computed, so nothing of the prompt is taken from the prefix cache. Not with stream.",
    )
    return_token_ids: bool | None = Field(None, description="Show the token ids of prompt and output.")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Write tokens as token_id:N where log-probabilities name them."
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        description="Keep so many tokens of a prompt; -1 keeps what leaves room for max_tokens, or for one token.",
    )
    response_format: ResponseFormat | None = Field(None, description="The form of the answer.")
    structured_outputs: StructuredOutputs | None = Field(None, description="The form of the answer, in vLLM's words.")
    guided_json: JsonSchema | str | None = Field(None, description="Older name of structured_outputs.json.")
    guided_regex: str | None = Field(None, description="Older name of structured_outputs.regex.")
    guided_choice: _List[str] | None = Field(None, description="Older name of structured_outputs.choice.")
    guided_grammar: str | None = Field(None, description="Older name of structured_outputs.grammar.")


class CompletionBody(SamplingFields):
    """POST /v1/completions."""

    prompt: Prompt = Field(description="Text, token ids, or a list of either.")
    echo: bool | None = Field(None, description="Begin each choice with its prompt.")
    logprobs: Annotated[int | None, BeforeValidator(_number_or_nothing, json_schema_input_type=int)] = Field(
        None,
        ge=0,
        description="Log-probabilities of the tokens, and of so many most likely ones beside each; with echo also of "
        "the prompt's tokens.",
    )
    best_of: int | None = Field(
        None, ge=1, description="Generate so many choices, and answer the n whose tokens are likeliest on average."
    )


class TextPart(Part):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


MessageContent = Annotated[
    Annotated[str | None, Tag("one text")] | Annotated[_List[TextPart], Tag("list of parts")],
    Discriminator(_content_form),
]


class Message(Part):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageContent = None
    name: str | None = None
    tool_calls: _List[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What the assistant thought before it answered.")

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it: text content, and ``system`` for ``developer``."""
        message = self.model_dump(include=set(type(self).model_fields), exclude_none=True)
        if isinstance(self.content, list):
            message["content"] = "\n".join(part.text for part in self.content)
        message.setdefault("content", "")
        if self.tool_calls:
            message["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        if self.role == "developer":
            message["role"] = "system"
        return message


def _call_for_template(call: dict[str, Any]) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves, so they are given what the text says, if it says anything."""
    function: Any = call.get("function")
    arguments: Any = cast("dict[str, Any]", function).get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return call
    try:
        value: Any = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**cast("dict[str, Any]", function), "arguments": value}}


class ChatBody(SamplingFields):
    """POST /v1/chat/completions."""

    messages: _List[Message] = Field(min_length=1)
    logprobs: bool | None = Field(None, description="Show log-probabilities of the output's tokens.")
    top_logprobs: int | None = Field(None, ge=0, description="And of so many most likely tokens beside each.")
    max_completion_tokens: int | None = Field(None, description="OpenAI's newer name of max_tokens; wins over it.")
    add_generation_prompt: bool | None = Field(None, description="End the prompt where the assistant's turn begins.")
    continue_final_message: bool | None = Field(None, description="Continue the last message instead of answering it.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the chat template.")
    tools: Tools | None = Field(None, description="Functions that the model may call.")
    tool_choice: ToolChoice | None = Field(
        None, description="Whether it may call one (auto, the default), must not, must (required), or which it must."
    )
    parallel_tool_calls: bool | None = Field(None, description="false: one call in an answer at most.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Told to the chat template; none also sets its enable_thinking to false."
    )
    include_reasoning: bool | None = Field(None, description="false: leave reasoning out of the answer.")


class TokenizeBody(Body):
    """POST /tokenize: a text, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: _List[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: _TokenIds
