"""Counting the tokens of one HTTP request. Knows nothing of text."""

from collections.abc import Sequence

from msgspec import UNSET

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.openai.reasoning_count import ReasoningCount
from chairlift.server.openai.responses import CompletionTokensDetails, PromptTokensDetails, Usage
from chairlift.server.tools.reasoning import Opening


class UsageTally:
    """Usage so far. Prompt tokens are complete from the start; each prompt counts once, whatever ``n`` is.

    Cached tokens of a prompt are those that none of its choices had to compute: the least over its choices.

    Args:
        prompt_lengths: in tokens.
        choices_per_prompt: ``n``.
        opening: where the choices begin, if their reasoning is counted apart.
    """

    def __init__(self, prompt_lengths: Sequence[int], choices_per_prompt: int, opening: Opening | None = None) -> None:
        self._prompt_tokens = sum(prompt_lengths)
        self._choices_per_prompt = choices_per_prompt
        self._output_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._opening: Opening | None = opening
        self._reasoning: dict[int, ReasoningCount] = {}

    def add(self, delta: ChoiceDelta) -> None:
        """Take note of a delta, whose index is that of the whole request."""
        self._output_tokens[delta.index] = delta.num_output_tokens
        if delta.num_cached_tokens is not None:
            prompt = delta.index // self._choices_per_prompt
            known = self._cached_tokens.get(prompt, delta.num_cached_tokens)
            self._cached_tokens[prompt] = min(known, delta.num_cached_tokens)
        if self._opening is not None and self._opening != "none":
            count = self._reasoning.get(delta.index)
            if count is None:
                count = self._reasoning[delta.index] = ReasoningCount(self._opening)
            count.add(delta)

    def usage(self) -> Usage:
        """The tokens counted so far."""
        completion_tokens = sum(self._output_tokens.values())
        return Usage(
            prompt_tokens=self._prompt_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
            completion_tokens=completion_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(self._cached_tokens.values())),
            completion_tokens_details=UNSET if self._opening is None else self._details(),
        )

    def _details(self) -> CompletionTokensDetails:
        return CompletionTokensDetails(sum(count.num_tokens for count in self._reasoning.values()))
