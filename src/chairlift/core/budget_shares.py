"""How the prompts of a step share its budget: by tier, by tenant, and then by the chunking policy.

Knows nothing of how prompts were chosen; it turns a number of tokens and a list of prompts into parts.

::

    budget of the step's prompts
    | promoted: the guaranteed part | most urgent tier ............ | next tier | ... |
                                    | all it wants, but every other one keeps its part |
                                    | tenant A | tenant B | ...  by weight, what one leaves goes to the others (fair)
                                    | chunking policy among the prompts of one tenant |
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from chairlift.core.policies.chunking import ChunkingPolicy
from chairlift.core.views import PrefillView

MIN_PART_TOKENS = 32
"""Tenants that share a step get at least about so much: a budget cut finer makes everybody wait for everybody."""

_Indices: TypeAlias = list[int]


class BudgetShares:
    """Splits a step's prefill budget.

    Args:
        chunking: splits what a tenant (or a tier, if tenants do not count) gets.
        part_for: the part of the budget that each of so many tiers keeps, however urgent the others are.
        weight_of: a tenant's weight; tenants do not count if absent.
    """

    def __init__(
        self,
        chunking: ChunkingPolicy,
        part_for: Callable[[int], float],
        weight_of: Callable[[str], float] | None = None,
    ) -> None:
        self._chunking = chunking
        self._part_for = part_for
        self._weight_of = weight_of

    def split(self, budget_tokens: int, prompts: Sequence[PrefillView]) -> list[int]:
        """Return the tokens that each prompt computes in this step; see :class:`ChunkingPolicy`."""
        if not prompts or budget_tokens <= 0:
            return [0] * len(prompts)
        if len(prompts) == 1:
            return self._chunking.split(budget_tokens, prompts)
        tiers = {prompt.request.priority for prompt in prompts}
        promoted = [index for index, prompt in enumerate(prompts) if prompt.request.is_promoted]
        if len(tiers) == 1 and not promoted and self._weight_of is None:
            return self._chunking.split(budget_tokens, prompts)
        split = _Split(self._chunking, prompts, self._weight_of)
        part = self._part_for(len(tiers))
        least = max(1, int(part * budget_tokens)) if part else 0
        left = budget_tokens - split.give(promoted, min(least, budget_tokens))
        lanes = [[i for i, prompt in enumerate(prompts) if prompt.request.priority == tier] for tier in sorted(tiers)]
        kept = [min(least, split.wanted(lane)) for lane in lanes]
        for number, lane in enumerate(lanes):
            left -= split.give_tenants(lane, max(left - sum(kept[number + 1 :]), min(left, kept[number])))
        return split.parts


class _Split:
    """Parts as they are handed out."""

    def __init__(
        self, chunking: ChunkingPolicy, prompts: Sequence[PrefillView], weight_of: Callable[[str], float] | None
    ) -> None:
        self.parts = [0] * len(prompts)
        self._chunking = chunking
        self._prompts = prompts
        self._weight_of = weight_of

    def wanted(self, indices: _Indices) -> int:
        """Tokens that these prompts have yet to compute."""
        return sum(self._prompts[index].num_remaining_tokens - self.parts[index] for index in indices)

    def give(self, indices: _Indices, num_tokens: int) -> int:
        """Split tokens between these prompts; return how many were taken."""
        indices = [index for index in indices if self._prompts[index].num_remaining_tokens > self.parts[index]]
        if not indices or num_tokens <= 0:
            return 0
        views = [
            self._prompts[index]._replace(
                num_remaining_tokens=self._prompts[index].num_remaining_tokens - self.parts[index]
            )
            for index in indices
        ]
        parts = self._chunking.split(num_tokens, views)
        for index, part in zip(indices, parts, strict=True):
            self.parts[index] += part
        return sum(parts)

    def give_tenants(self, indices: _Indices, num_tokens: int) -> int:
        """Split tokens between the tenants of these prompts, if tenants count, and then between the prompts."""
        if self._weight_of is None:
            return self.give(indices, num_tokens)
        tenants: dict[str, _Indices] = {}
        for index in indices:
            tenants.setdefault(self._prompts[index].request.tenant, []).append(index)
        wanted = [self.wanted(own) for own in tenants.values()]
        weights = [self._weight_of(tenant) for tenant in tenants]
        shares = share_out(num_tokens, wanted, weights, max(2, num_tokens // MIN_PART_TOKENS))
        return sum(self.give(own, share) for own, share in zip(tenants.values(), shares, strict=True))


def share_out(num_tokens: int, wanted: Sequence[int], weights: Sequence[float], max_sharers: int) -> list[int]:
    """Share tokens out by weight; what somebody does not want goes to the others (weighted max-min fairness).

    At most ``max_sharers`` get something: the first one, and those who want least for their weight.
    """
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: (index > 0, wanted[index] / weights[index], index))
    sharers = [index for index in order if wanted[index]][:max_sharers]
    sharers.sort(key=lambda index: (wanted[index] / weights[index], index))
    left, weight = num_tokens, sum(weights[index] for index in sharers)
    for num_behind, index in zip(range(len(sharers) - 1, -1, -1), sharers, strict=True):
        # Rounded up: one who wants less than its share gets all it wants, and the last one what is left. A token is
        # kept for each one behind, or a prompt whose weight is small against the others' would stand still in its slot.
        most = min(left, max(1, left - num_behind))
        share = min(wanted[index], most, -int(-left * weights[index] // weight))
        shares[index] = share
        left -= share
        weight -= weights[index]
    for index in order:
        more = min(wanted[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares
