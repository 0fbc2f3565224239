"""How prompts share what decodes leave of a step's token budget.

Knows nothing of decodes, pages or the queue.
"""

from collections.abc import Sequence
from typing import Protocol

from chairlift.core.views import PrefillView


class ChunkingPolicy(Protocol):
    """Splits a step's prefill budget."""

    def split(self, budget_tokens: int, prompts: Sequence[PrefillView]) -> list[int]:
        """Return the tokens that each prompt computes in this step, 0 for none.

        ``prompts`` are in order: running ones as they were admitted, then waiting ones as they would be. The sum must
        not exceed the budget, no part its prompt's remaining tokens, and if both are positive somebody must get a
        token. A waiting prompt that gets none is not admitted in this step.
        """
        ...


class ShortestFirst:
    """The shortest remaining prompt first, but the one that is first in order always gets a quarter of the budget.

    Short prompts pass a long one and mean time to first token is that of shortest-remaining-first; since everybody
    becomes first in order one day, the quarter also bounds how long a long prompt can take.

    Args:
        max_chunk_tokens: tokens of one prompt per step while others are left without; 0 sets no cap.
    """

    _GUARANTEED_PART = 4

    def __init__(self, max_chunk_tokens: int = 0) -> None:
        self._max_chunk_tokens = max_chunk_tokens

    def split(self, budget_tokens: int, prompts: Sequence[PrefillView]) -> list[int]:
        """Split by remaining length; see the class."""
        parts = [0] * len(prompts)
        if not prompts or budget_tokens <= 0:
            return parts
        if len(prompts) == 1:
            return [min(prompts[0].num_remaining_tokens, budget_tokens)]
        left = budget_tokens
        parts[0] = min(prompts[0].num_remaining_tokens, max(1, left // self._GUARANTEED_PART))
        left -= parts[0]
        by_length = sorted(range(len(prompts)), key=lambda index: (prompts[index].num_remaining_tokens, index))
        cap = self._max_chunk_tokens or budget_tokens
        # The second round hands out what the cap left over, so that a budget is never wasted on a cap.
        for limit in (cap, budget_tokens):
            for index in by_length:
                more = min(prompts[index].num_remaining_tokens, limit) - parts[index]
                if more > 0 and left > 0:
                    part = min(more, left)
                    parts[index] += part
                    left -= part
        return parts


class WholePrompts:
    """Chunked prefill switched off: a prompt runs whole or not at all.

    Prompts run in order while the budget lasts; one that is longer than the budget is the only prompt of its step.
    """

    def split(self, budget_tokens: int, prompts: Sequence[PrefillView]) -> list[int]:
        """Give each prompt all or nothing."""
        parts = [0] * len(prompts)
        left = budget_tokens
        for index, prompt in enumerate(prompts):
            whole = prompt.num_remaining_tokens
            if whole <= left:
                parts[index] = whole
                left -= whole
            elif index == 0 and whole > budget_tokens:
                parts[index] = whole
                break
        return parts
