"""Who gives way when a page or a slot is needed and none is left.

Knows nothing of what happens to the victim, or of who may be chosen: candidates are those that may.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from chairlift.core.views import RequestView, VictimPrices


class PreemptionPolicy(Protocol):
    """Chooses a victim."""

    def choose(self, candidates: Sequence[RequestView], prices: VictimPrices) -> RequestView:
        """Return one of ``candidates`` (never empty), which are in the order in which they were admitted.

        ``prices`` are worked out when they are asked for; whoever asks for none pays for none.
        """
        ...


class LastAdmitted:
    """The least urgent tier's most recently admitted request, as vLLM does within a tier."""

    def choose(self, candidates: Sequence[RequestView], prices: VictimPrices) -> RequestView:
        """Take the last admitted of the highest tier number."""
        del prices
        return max(enumerate(candidates), key=lambda pair: (pair[1].priority, pair[0]))[1]


class Cheapest:
    """Of the least urgent tier, whoever loses the least work for the pages that are needed.

    The score is the work lost over the pages freed, as far as these are of use soon; it rises with every time that the
    request was preempted already and as its deadline comes near. Of the tier's latest ``max_priced`` requests the one
    with the lowest score is taken, the last admitted of equals. Among several candidates the first admitted of the
    most urgent tier is never taken, so that somebody always advances.
    """

    max_priced: ClassVar[int] = 256
    _NEAR_NS: ClassVar[int] = 5_000_000_000
    """Time to a deadline at which a request starts to count as dearer."""

    def choose(self, candidates: Sequence[RequestView], prices: VictimPrices) -> RequestView:
        """Score the least urgent tier; see the class."""
        if len(candidates) == 1:
            return candidates[0]
        most_urgent = min(request.priority for request in candidates)
        least_urgent = max(request.priority for request in candidates)
        tier = [request for request in candidates if request.priority == least_urgent]
        if least_urgent == most_urgent:
            del tier[0]
        return min(reversed(tier[-self.max_priced :]), key=lambda request: self._score(request, prices))

    def _score(self, request: RequestView, prices: VictimPrices) -> float:
        num_useful_pages = min(prices.num_freed_pages(request), prices.num_useful_pages)
        lost_ns = prices.cost_ns(request) + prices.overhead_ns
        return lost_ns * (1 + request.num_preemptions) * self._nearness(request, prices) / (num_useful_pages + 1)

    def _nearness(self, request: RequestView, prices: VictimPrices) -> float:
        """1 if no deadline is near, 2 if one is here."""
        deadline_ns = request.deadline_ns
        if request.num_output_tokens == 0 and request.ttft_deadline_ns is not None:
            deadline_ns = (
                request.ttft_deadline_ns if deadline_ns is None else min(deadline_ns, request.ttft_deadline_ns)
            )
        if deadline_ns is None:
            return 1.0
        slack_ns = deadline_ns - prices.now_ns
        return 2.0 - min(max(slack_ns, 0), self._NEAR_NS) / self._NEAR_NS
