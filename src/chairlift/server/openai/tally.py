"""Counting the tokens of one HTTP request. Knows nothing of text."""

from collections.abc import Sequence

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.openai.responses import PromptTokensDetails, Usage


class UsageTally:
    """Usage so far. Prompt tokens are complete from the start; each prompt counts once, whatever ``n`` is.

    Cached tokens of a prompt are those that none of its choices had to compute: the least over its choices.
    """

    def __init__(self, prompt_lengths: Sequence[int], choices_per_prompt: int) -> None:
        self._prompt_tokens = sum(prompt_lengths)
        self._choices_per_prompt = choices_per_prompt
        self._output_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}

    def add(self, delta: ChoiceDelta) -> None:
        """Take note of a delta, whose index is that of the whole request."""
        self._output_tokens[delta.index] = delta.num_output_tokens
        if delta.num_cached_tokens is not None:
            prompt = delta.index // self._choices_per_prompt
            known = self._cached_tokens.get(prompt, delta.num_cached_tokens)
            self._cached_tokens[prompt] = min(known, delta.num_cached_tokens)

    def usage(self) -> Usage:
        """The tokens counted so far."""
        completion_tokens = sum(self._output_tokens.values())
        return Usage(
            prompt_tokens=self._prompt_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
            completion_tokens=completion_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(self._cached_tokens.values())),
        )
