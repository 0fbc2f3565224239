"""The forms in which callers of the offline ``LLM`` may write a prompt.

Knows nothing of generation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""

_FORMS = 'text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as tokens; ``text`` is ``None`` if it came as tokens."""

    text: str | None
    token_ids: tuple[int, ...]


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts one by one. A list of integers is one prompt, anything else that can be read through holds
    several.

    Raises:
        InvalidRequestError: it is neither a prompt nor several.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError(
            f"prompts must be one or many, each {_FORMS}, got {type(prompts).__name__}", param="prompt"
        )
    items = list(prompts)  # a generator can be read only once
    if items and all(isinstance(item, int) for item in items):
        return [cast("Sequence[int]", items)]
    return cast("list[Prompt]", items)


def encode_prompt(prompt: Prompt, encode: Callable[[str], list[int]]) -> EncodedPrompt:
    """Turn one prompt into tokens.

    Raises:
        InvalidRequestError: it has none of the known forms.
    """
    if isinstance(prompt, Mapping):
        known = [key for key in ("prompt_token_ids", "prompt") if prompt.get(key) is not None]
        if not known or set(prompt) - {"prompt_token_ids", "prompt"}:
            raise InvalidRequestError(f"a prompt must be {_FORMS}, got keys {sorted(prompt)}", param="prompt")
        return encode_prompt(prompt[known[0]], encode)
    if isinstance(prompt, str):
        return EncodedPrompt(prompt, tuple(encode(prompt)))
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may pass anything)
        return EncodedPrompt(None, tuple(prompt))
    raise InvalidRequestError(f"a prompt must be {_FORMS}, got {type(prompt).__name__}", param="prompt")


def match_sampling(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Return one set of choices per prompt, from one for all or from one each.

    Raises:
        InvalidRequestError: there are more or fewer of them than prompts, or they are something else.
    """
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    # Callers may pass anything.
    given = cast("Sequence[object]", sampling_params)
    if not isinstance(given, Sequence) or not all(isinstance(item, SamplingParams) for item in given):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError("sampling_params must be SamplingParams or a list of them", param="sampling_params")
    if len(sampling_params) != num_prompts:
        raise InvalidRequestError(
            f"there are {num_prompts} prompts and {len(sampling_params)} sampling_params; give one for all or one each",
            param="sampling_params",
        )
    return list(sampling_params)
