"""Refuses requests that can never be served, before anything is sent to the engine.

Knows nothing of HTTP: errors name the request field, as the server and the offline ``LLM`` both want it. The scheduler
refuses impossible lengths on its own too; here the caller hears of it without a round trip, and nothing huge travels.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Protocol

import msgspec

from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError, RequestTooLongError


class Limits(Protocol):
    """The part of :class:`~chairlift.engine.messages.ModelInfo` that limits a request."""

    @property
    def max_model_len(self) -> int:
        """Tokens of one request at most, prompt and output."""
        ...

    @property
    def num_pages(self) -> int:
        """KV pages in all."""
        ...

    @property
    def page_size(self) -> int:
        """Token slots in a page."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...


def check_request(prompt_token_ids: Sequence[int], sampling: SamplingParams, limits: Limits) -> None:
    """Refuse a request that this engine can never serve.

    A prompt needs room for at least one output token, unless it is pooled. More ``max_tokens`` than fit are no error:
    generation ends with ``length`` where the room ends.

    Raises:
        InvalidRequestError: no prompt, unknown token ids, or sampling choices that contradict each other.
        RequestTooLongError: the prompt does not fit in the model length or in the KV memory.
    """
    _check_sampling(sampling, limits)
    _check_prompt_length(len(prompt_token_ids), sampling, limits)
    _check_token_ids(prompt_token_ids, limits.vocab_size, param="prompt")


def _check_sampling(sampling: SamplingParams, limits: Limits) -> None:
    if sampling.max_tokens == 0:
        raise InvalidRequestError("max_tokens must be at least 1 to generate, got 0", param="max_tokens")
    if sampling.stop and not sampling.detokenize:
        raise InvalidRequestError("stop strings need detokenize=True: without text none can be found", param="stop")
    _check_token_ids(sampling.stop_token_ids, limits.vocab_size, param="stop_token_ids")
    if sampling.has_edits:
        _check_edits(sampling, limits.vocab_size)


def _check_edits(sampling: SamplingParams, vocab_size: int) -> None:
    _check_token_ids(tuple(sampling.logit_bias or ()), vocab_size, param="logit_bias")
    for word in sampling.bad_token_ids:
        _check_token_ids(word, vocab_size, param="bad_words")
    never = {word[0] for word in sampling.bad_token_ids if len(word) == 1}
    allowed = sampling.allowed_token_ids
    if allowed is not None:
        _check_token_ids(allowed, vocab_size, param="allowed_token_ids")
        if never.issuperset(allowed):
            raise InvalidRequestError(
                f"nothing can be generated: bad_words rule out every one of the {len(allowed)} allowed_token_ids",
                param="allowed_token_ids",
            )
    elif len(never) >= vocab_size:
        raise InvalidRequestError("nothing can be generated: bad_words rule out every token", param="bad_words")


def _check_prompt_length(num_tokens: int, sampling: SamplingParams, limits: Limits) -> None:
    if num_tokens == 0:
        raise InvalidRequestError("the prompt must have at least 1 token, got 0", param="prompt")
    asked = ""
    if sampling.pooling is None:
        asked = f" and asks for {_described(sampling.max_tokens)}"
    num_least = 0 if sampling.pooling is not None else 1
    if num_tokens + num_least > limits.max_model_len:
        beside = ": at least one output token must fit beside the prompt" if num_least else ""
        raise RequestTooLongError(
            f"the model length is {limits.max_model_len} tokens (--max-model-len), but the prompt has {num_tokens}"
            f"{asked}{beside}",
            param="prompt",
        )
    num_token_slots = limits.num_pages * limits.page_size
    if num_tokens > num_token_slots:
        raise RequestTooLongError(
            f"the KV memory holds {num_token_slots} tokens (--kv-cache-memory), but the prompt has {num_tokens}{asked}",
            param="prompt",
        )


def _described(max_tokens: int | None) -> str:
    return "as many output tokens as fit" if max_tokens is None else f"max_tokens={max_tokens}"


def _check_token_ids(token_ids: Sequence[int], vocab_size: int, *, param: str) -> None:
    try:
        msgspec.convert(token_ids, _known_ids(vocab_size))
    except msgspec.ValidationError:
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{param} must hold token ids in [0, {vocab_size}), the model's vocabulary, got {token_id!r}",
                    param=param,
                ) from None


@lru_cache(maxsize=16)
def _known_ids(vocab_size: int) -> Any:
    """The type of lists of a vocabulary's ids: checked without a step of the interpreter for each of 100,000 tokens."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]
