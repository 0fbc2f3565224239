"""From a request body to sampling parameters. Knows nothing of prompts.

How ``max_tokens`` is understood: absent or ``null`` is 16 for completions (OpenAI's default) and what the model length
leaves for chat. A number above what the model length leaves is lowered to it; a prompt that leaves no room for even
one token is refused. 0 generates nothing: an empty text, or the prompt with ``echo``, and ``finish_reason`` ``length``.
"""

from typing import Any

from chairlift.config.sections import ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError
from chairlift.server.errors import shorten
from chairlift.server.openai.requests import ChatBody, SamplingFields

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
    "stop_token_ids",
    "include_stop_str_in_output",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)


def sampling_params(body: SamplingFields, settings: ServerSettings) -> SamplingParams:
    """Sampling parameters of a request; fields that are absent or ``null`` take their defaults.

    Raises:
        InvalidRequestError: a value is outside its range or above a limit of the server.
    """
    if body.n is not None and body.n > settings.max_choices:
        raise InvalidRequestError(
            f"n is {shorten(str(body.n))}, but --max-choices is {settings.max_choices}", param="n"
        )
    values: dict[str, Any] = {name: getattr(body, name) for name in _SAME_NAME if getattr(body, name) is not None}
    if isinstance(body, ChatBody):
        newer = body.max_completion_tokens
        values["max_tokens"] = body.max_tokens if newer is None else newer
    return SamplingParams(stop=tuple(body.stop or ()), **values)
