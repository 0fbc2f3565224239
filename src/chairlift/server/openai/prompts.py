"""From prompts and messages to token ids that the model can take. Knows nothing of sampling or streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from chairlift.config.sections import LimitSettings, ServerSettings
from chairlift.errors import InvalidRequestError, RequestTooLongError
from chairlift.server.engine_port import Engine, ModelFacts, TextCodec
from chairlift.server.openai.requests import CompletionBody, Message, Prompt
from chairlift.server.workers import in_worker

_LONG_TEXT_CHARS = 4096
_MANY_TOKENS = 2048
_MANY_MESSAGES = 32
"""What is longer is worked on in a thread, so that other requests do not wait for it."""

_RESERVED_TEMPLATE_VARIABLES = frozenset(
    {"messages", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
)


class Conversation(Protocol):
    """The fields that chat and tokenize bodies share."""

    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt as the engine takes it. ``text`` is there if the client gave text."""

    token_ids: Sequence[int]
    text: str | None


async def encode(
    codec: TextCodec, text: str, *, add_special_tokens: bool, limits: LimitSettings | None = None
) -> list[int]:
    """Token ids of a text, without keeping the event loop from others for long.

    Raises:
        RequestTooLongError: it is longer than ``--max-prompt-chars``.
    """
    max_chars = (limits or LimitSettings()).max_prompt_chars
    if len(text) > max_chars:
        raise RequestTooLongError(
            f"the prompt has {len(text)} characters, but --max-prompt-chars is {max_chars}", param="prompt"
        )
    if len(text) <= _LONG_TEXT_CHARS:
        return codec.encode(text, add_special_tokens)
    return await in_worker(codec.encode, text, add_special_tokens)


async def encode_each(
    codec: TextCodec, texts: Sequence[str], *, add_special_tokens: bool, limits: LimitSettings
) -> list[PreparedPrompt]:
    """Token ids of several texts, without keeping the event loop from others for long.

    Raises:
        RequestTooLongError: one is longer than ``--max-prompt-chars``.
    """
    longest = max(map(len, texts))
    if longest > limits.max_prompt_chars:
        raise RequestTooLongError(
            f"an input has {longest} characters, but --max-prompt-chars is {limits.max_prompt_chars}", param="input"
        )

    def encode_all() -> list[PreparedPrompt]:
        return [PreparedPrompt(codec.encode(text, add_special_tokens), text) for text in texts]

    is_short = len(texts) <= _MANY_MESSAGES and sum(map(len, texts)) <= _LONG_TEXT_CHARS
    return encode_all() if is_short else await in_worker(encode_all)


async def decode(codec: TextCodec, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Text of token ids, without keeping the event loop from others for long."""
    if len(token_ids) <= _MANY_TOKENS:
        return codec.decode(token_ids, skip_special_tokens)
    return await in_worker(codec.decode, token_ids, skip_special_tokens)


async def decode_each(codec: TextCodec, token_ids: Sequence[int]) -> list[str]:
    """Text of each token alone, without keeping the event loop from others for long."""

    def texts() -> list[str]:
        return [codec.decode([token], skip_special_tokens=False) for token in token_ids]

    return texts() if len(token_ids) <= _MANY_TOKENS else await in_worker(texts)


async def prepare_prompts(
    body: CompletionBody, engine: Engine, settings: ServerSettings, limits: LimitSettings | None = None
) -> list[PreparedPrompt]:
    """The prompts of a completions request, in order.

    Raises:
        InvalidRequestError: there are too many, or one is too long.
    """
    prompts = prompt_list(body.prompt)
    if len(prompts) > settings.max_prompts:
        raise InvalidRequestError(
            f"the request has {len(prompts)} prompts, but --max-prompts is {settings.max_prompts}", param="prompt"
        )
    add_special_tokens = body.add_special_tokens is not False
    prepared: list[PreparedPrompt] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            token_ids = await encode(engine.tokenizer, prompt, add_special_tokens=add_special_tokens, limits=limits)
            prepared.append(PreparedPrompt(token_ids, prompt))
        else:
            prepared.append(PreparedPrompt(prompt, None))
    return prepared


async def prepare_conversation(
    messages: list[Message],
    body: Conversation,
    codec: TextCodec,
    limits: LimitSettings | None = None,
    variables: Mapping[str, Any] | None = None,
) -> PreparedPrompt:
    """The prompt that a conversation becomes; ``variables`` are what its template is told, if not what the body says.

    Raises:
        InvalidRequestError: the model has no chat template, or the template cannot take these messages.
    """
    continue_final_message = body.continue_final_message is True
    if continue_final_message and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    variables = body.chat_template_kwargs or {} if variables is None else variables
    if taken := _RESERVED_TEMPLATE_VARIABLES & variables.keys():
        raise InvalidRequestError(f"chat_template_kwargs must not set '{min(taken)}'", param="chat_template_kwargs")

    def render() -> str:
        return codec.apply_chat_template(
            [message.for_template() for message in messages],
            add_generation_prompt=body.add_generation_prompt is not False and not continue_final_message,
            continue_final_message=continue_final_message,
            **variables,
        )

    is_short = len(messages) <= _MANY_MESSAGES and not variables and _num_chars(messages) <= _LONG_TEXT_CHARS
    text = render() if is_short else await in_worker(render)
    return PreparedPrompt(
        await encode(codec, text, add_special_tokens=body.add_special_tokens is True, limits=limits), text
    )


class Truncation(Protocol):
    """The fields that say how a prompt is cut."""

    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None


def num_reserved(max_tokens: int | None) -> int:
    """Output tokens that a prompt leaves room for if it is cut as long as possible: those wanted, or one."""
    return max(1, max_tokens or 1)


def truncate(prompt: PreparedPrompt, body: Truncation, num_output_tokens: int, model: ModelFacts) -> PreparedPrompt:
    """The prompt as short as ``truncate_prompt_tokens`` wants it; the text of what was cut is forgotten.

    ``num_output_tokens``: what -1 leaves room for.

    Raises:
        InvalidRequestError: none would be kept, or more than the model length.
    """
    kept = body.truncate_prompt_tokens
    if kept is None:
        return prompt
    if kept > model.max_model_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {kept}, but the model length is {model.max_model_len} tokens (--max-model-len)",
            param="truncate_prompt_tokens",
        )
    if kept == 0:
        raise InvalidRequestError("truncate_prompt_tokens is 0: nothing would be left", param="truncate_prompt_tokens")
    if kept == -1:
        kept = max(1, model.max_model_len - num_output_tokens)
    if len(prompt.token_ids) <= kept:
        return prompt
    left = body.truncation_side != "right"
    return PreparedPrompt(prompt.token_ids[-kept:] if left else prompt.token_ids[:kept], None)


def _num_chars(messages: Sequence[Message]) -> int:
    contents = (message.content or "" for message in messages)
    return sum(
        len(content) if isinstance(content, str) else sum(len(part.text) for part in content) for content in contents
    )


def check_prompt(
    token_ids: Sequence[int], max_tokens: int | None, model: ModelFacts, *, is_echoed: bool = False
) -> None:
    """Refuse what must not even be echoed; what is longer than the model length, or leaves no room for output, is the
    engine's to refuse.

    Raises:
        InvalidRequestError: an id is outside the vocabulary.
        RequestTooLongError: it is too long, and it would be echoed or ``max_tokens`` is 0, so that it would be too
            late or the engine is not asked.
    """
    if len(token_ids) <= model.max_model_len:
        check_token_ids(token_ids, model, param="prompt")
    elif is_echoed or max_tokens == 0:
        asked = "as many output tokens as fit" if max_tokens is None else f"max_tokens={max_tokens}"
        raise RequestTooLongError(
            f"the model length is {model.max_model_len} tokens (--max-model-len), but the prompt has "
            f"{len(token_ids)} and asks for {asked}",
            param="prompt",
        )


def check_token_ids(token_ids: Sequence[int], model: ModelFacts, *, param: str) -> None:
    """Refuse ids that the model does not know.

    Raises:
        InvalidRequestError: an id is outside the vocabulary.
    """
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= model.vocab_size):
        wrong = next(token for token in token_ids if not 0 <= token < model.vocab_size)
        raise InvalidRequestError(f"token id {wrong} is not in [0, {model.vocab_size})", param=param)


def prompt_list(prompt: Prompt) -> Sequence[str | list[int]]:
    """The prompts one by one; a list of token ids is one of them."""
    if isinstance(prompt, str):
        return [prompt]
    # All items are alike, and there may be millions of token ids.
    return [cast("list[int]", prompt)] if isinstance(prompt[0], int) else cast("list[str] | list[list[int]]", prompt)
