"""Words that must not be generated, as sequences of token ids.

Knows nothing of logits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from chairlift.core.sampling_params import SamplingParams


class Encode(Protocol):
    """A tokenizer's way from text to ids."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> Sequence[int]:
        """Return the ids of a text."""
        ...


def with_bad_tokens(sampling: SamplingParams, encode: Encode) -> SamplingParams:
    """Return parameters that hold the ids of their bad words.

    A word is taken as it begins a text and, where that is one other token sequence of the same length, as it follows a
    space: what vLLM does.

    Raises:
        InvalidRequestError: a word cannot be encoded.
    """
    if not sampling.bad_words:
        return sampling
    sequences = dict.fromkeys(sampling.bad_token_ids)
    for word in sampling.bad_words:
        bare = tuple(encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(encode(f" {word.lstrip()}", add_special_tokens=False))
        sequences[bare] = None
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            sequences[spaced] = None
    return replace(sampling, bad_token_ids=tuple(filter(None, sequences)))
