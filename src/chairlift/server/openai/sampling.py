"""From a request body to sampling parameters. Knows nothing of prompts.

How ``max_tokens`` is understood: absent or ``null`` is 16 for completions (OpenAI's default) and what the model length
leaves for chat. A number above what the model length leaves is lowered to it; a prompt that leaves no room for even
one token is refused. 0 generates nothing: an empty text, or the prompt with ``echo``, and ``finish_reason`` ``length``.
"""

from typing import Any

from chairlift.config.sections import LimitSettings, ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError
from chairlift.server.errors import shorten
from chairlift.server.openai.requests import ChatBody, CompletionBody, SamplingFields

_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "stop_token_ids",
    "include_stop_str_in_output",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)

_MAX_ID_DIGITS = 10


def sampling_params(
    body: SamplingFields, settings: ServerSettings, limits: LimitSettings | None = None
) -> SamplingParams:
    """Sampling parameters of a request; fields that are absent or ``null`` take their defaults.

    Raises:
        InvalidRequestError: a value is outside its range or above a limit of the server, or fields contradict.
    """
    limits = limits or LimitSettings()
    _check_limits(body, settings, limits)
    values: dict[str, Any] = {name: getattr(body, name) for name in _SAME_NAME if getattr(body, name) is not None}
    if body.logit_bias:
        values["logit_bias"] = _bias_by_id(body.logit_bias)
    if isinstance(body, ChatBody):
        newer = body.max_completion_tokens
        values["max_tokens"] = body.max_tokens if newer is None else newer
        if body.logprobs:
            values["logprobs"] = body.top_logprobs or 0
    elif isinstance(body, CompletionBody):
        values |= _completion_values(body)
    return SamplingParams(stop=tuple(body.stop or ()), **values)


def _completion_values(body: CompletionBody) -> dict[str, Any]:
    """What text completions alone have. Choices are compared by their log-probabilities, so best_of needs these."""
    values: dict[str, Any] = {}
    if body.logprobs is not None:
        values["logprobs"] = body.logprobs
        if body.echo:
            values["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    if body.best_of is not None and body.best_of > (body.n or 1):
        values["n"] = body.best_of
        values.setdefault("logprobs", 0)
    return values


def _check_limits(body: SamplingFields, settings: ServerSettings, limits: LimitSettings) -> None:
    best_of = body.best_of if isinstance(body, CompletionBody) else None
    for name, number in (("n", body.n), ("best_of", best_of)):
        if number is not None and number > settings.max_choices:
            raise InvalidRequestError(
                f"{name} is {shorten(str(number))}, but --max-choices is {settings.max_choices}", param=name
            )
    if best_of is not None:
        _check_best_of(best_of, body)
    top_logprobs = body.top_logprobs if isinstance(body, ChatBody) else None
    logprobs = body.logprobs if isinstance(body, CompletionBody) else None
    for name, number in (
        ("logprobs", logprobs),
        ("top_logprobs", top_logprobs),
        ("prompt_logprobs", body.prompt_logprobs),
    ):
        if number is not None and number > limits.max_logprobs:
            raise InvalidRequestError(
                f"{name} is {shorten(str(number))}, but --max-logprobs is {limits.max_logprobs}", param=name
            )
    if isinstance(body, ChatBody) and top_logprobs and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
    if body.logit_bias and len(body.logit_bias) > limits.max_logit_bias:
        raise InvalidRequestError(
            f"logit_bias has {len(body.logit_bias)} tokens, but --max-logit-bias is {limits.max_logit_bias}",
            param="logit_bias",
        )
    if body.stop and len(body.stop) > limits.max_stop_strings:
        raise InvalidRequestError(
            f"stop has {len(body.stop)} strings, but --max-stop-strings is {limits.max_stop_strings}", param="stop"
        )


def _check_best_of(best_of: int, body: SamplingFields) -> None:
    wanted = body.n or 1
    if best_of < wanted:
        raise InvalidRequestError(f"best_of is {best_of}, but n is {wanted}: there would be too few", param="best_of")
    if best_of > wanted and body.stream:
        raise InvalidRequestError("the best of several choices cannot be streamed: none is known yet", param="best_of")


def _bias_by_id(bias: dict[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for name, value in bias.items():
        if not (name.isascii() and name.isdigit() and len(name) <= _MAX_ID_DIGITS):
            raise InvalidRequestError(f"logit_bias must be by token id, got '{shorten(name)}'", param="logit_bias")
        by_id[int(name)] = value
    return by_id
