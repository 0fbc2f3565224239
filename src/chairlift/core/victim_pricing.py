"""Prices of possible victims, from what each of them holds and from what the machine has shown.

Knows nothing of who may be a victim, or of how the choice is made.
"""

from typing import NamedTuple

from chairlift.core.events import PreemptionMode
from chairlift.core.kv_memory import KVMemory
from chairlift.core.preemption_cost import Loss, PreemptionCosts, Situation
from chairlift.core.views import RequestView


class Way(NamedTuple):
    """How a request would be preempted: what becomes of its pages, how many it keeps, and what that costs."""

    mode: PreemptionMode
    num_kept_pages: int
    cost_ns: float


class VictimPricing:
    """Implements :class:`~.views.VictimPrices`; good for one decision, while nothing changes.

    Pages of a running request, as half-open intervals of its page table::

        [0, shared)          others hold them too: giving them up frees nothing
        [shared, computed)   only it holds them
        [computed, ...)      reserved for tokens to come
    """

    def __init__(
        self,
        memory: KVMemory,
        costs: PreemptionCosts,
        situation: Situation,
        *,
        mode: str,
        now_ns: int,
        num_needed_pages: int,
    ) -> None:
        self.now_ns = now_ns
        self.num_useful_pages = num_needed_pages + situation.num_running
        self.overhead_ns = costs.recompute_ns(memory.page_size)
        self._memory = memory
        self._costs = costs
        self._situation = situation
        self._mode = mode
        self._num_needed_pages = num_needed_pages

    def num_freed_pages(self, request: RequestView) -> int:
        """All of the request's pages that nobody shares."""
        return len(request.pages) - self._memory.num_shared_pages(request)

    def cost_ns(self, request: RequestView) -> float:
        """See :attr:`Way.cost_ns`."""
        return self.way(request).cost_ns

    def way(self, request: RequestView) -> Way:
        """Decide how this request would be preempted."""
        loss = self._loss(request)
        if request.needs_every_row:
            return Way("recompute", 0, self._costs.price("recompute", loss, self._situation))
        if self._mode == "auto":
            mode, cost_ns = self._costs.choose(loss, self._situation)
        else:
            mode = self._fixed_mode()
            cost_ns = self._costs.price(mode, loss, self._situation)
        if mode != "tail":
            return Way(mode, 0, cost_ns)
        num_kept = self._num_pages_kept(request, self._memory.num_shared_pages(request))
        return Way("tail" if num_kept else "recompute", num_kept, cost_ns)

    def _fixed_mode(self) -> PreemptionMode:
        if self._mode == "swap":
            # A host tier that is full keeps nothing more.
            return "swap" if self._situation.num_free_host_pages else "recompute"
        return "tail" if self._mode == "tail" else "recompute"

    def _num_pages_kept(self, request: RequestView, num_shared: int) -> int:
        """In tail mode: all but the pages that are needed now, and those reserved for tokens to come."""
        num_computed = self._memory.pages_for(request.num_computed_tokens)
        return max(min(num_computed, len(request.pages) - self._num_needed_pages), min(num_shared, num_computed))

    def _loss(self, request: RequestView) -> Loss:
        page_size, computed = self._memory.page_size, request.num_computed_tokens
        num_shared = self._memory.num_shared_pages(request)
        num_kept = self._num_pages_kept(request, num_shared)
        num_found = 0 if request.needs_every_row else num_shared + self._num_found_again(request, num_shared)
        return Loss(
            num_recomputed_tokens=max(0, computed - num_found * page_size),
            num_computed_tokens=computed,
            num_pages=self._memory.pages_for(computed),
            num_tail_tokens=max(0, computed - num_kept * page_size),
            num_kept_pages=max(0, num_kept - num_shared),
        )

    def _num_found_again(self, request: RequestView, num_shared: int) -> int:
        """How many of its own pages will still be in the prefix tree: all that nobody takes for use.

        Pages given up last are taken last, so only the needs of those count that come before the request does again:
        each as much as the one that needs pages now.
        """
        num_cached = max(0, request.num_published_pages - num_shared)
        num_takers = max(1, self._situation.num_waiting_before) if self._situation.is_pool_wanted else 1
        return max(0, num_cached - self._num_needed_pages * num_takers)
