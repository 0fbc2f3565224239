"""Virtual token counters: how much service each tenant has had, in weighted tokens over its weight.

Knows nothing of queues or steps: it is told who waits and what was served. Tiers do not compete with each other, so
each tier keeps counters of its own.

Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
"""

import heapq
from collections.abc import Callable


class _TierCounters:
    """Counters of one tier. ``floor`` is the level that the least served waiting tenant has reached; it never falls."""

    __slots__ = ("active", "floor", "idle", "listed_active", "listed_idle", "num_waiting", "values")

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.num_waiting: dict[str, int] = {}
        self.floor = 0.0
        # Heaps of (value when listed, tenant). Values only grow, so an entry is brought up to date when it comes up.
        self.active: list[tuple[float, str]] = []
        self.idle: list[tuple[float, str]] = []
        self.listed_active: set[str] = set()
        self.listed_idle: set[str] = set()

    def raise_floor(self) -> None:
        """Lift the floor to the smallest counter of a tenant that waits."""
        heap, values = self.active, self.values
        while heap:
            value, tenant = heap[0]
            if tenant not in self.num_waiting:
                heapq.heappop(heap)
                self.listed_active.discard(tenant)
            elif values[tenant] != value:
                heapq.heapreplace(heap, (values[tenant], tenant))
            else:
                self.floor = max(self.floor, value)
                return

    def list_idle(self, tenant: str) -> None:
        """Remember that the counter may be forgotten one day."""
        if tenant not in self.listed_idle:
            self.listed_idle.add(tenant)
            heapq.heappush(self.idle, (self.values[tenant], tenant))


class VirtualCounters:
    """Service per tier and tenant.

    - An input token counts 1, one found in the prefix tree :attr:`CACHED_FACTOR`, an output token
      :attr:`OUTPUT_WEIGHT`; what was charged once is free when it has to be computed again after a preemption.
    - A tenant that comes back to the queue is lifted to the smallest counter of those that wait: nobody saves up
      service while idle. If nobody waits, to where the last one stood when it left.
    - A counter that the floor has overtaken says nothing any more and is forgotten, and so are the smallest beyond
      :attr:`MAX_IDLE`: memory is bounded however many tenants come by.

    Args:
        weight_of: the weight of a tenant.
    """

    INPUT_WEIGHT = 1.0
    OUTPUT_WEIGHT = 2.0
    CACHED_FACTOR = 0.1
    MAX_IDLE = 4096

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self.weight_of = weight_of
        self._tiers: dict[int, _TierCounters] = {}

    def __len__(self) -> int:
        """How many counters are kept."""
        return sum(len(counters.values) for counters in self._tiers.values())

    def value(self, tier: int, tenant: str) -> float:
        """Return the tenant's counter, in weighted tokens over its weight."""
        counters = self._tiers.get(tier)
        return 0.0 if counters is None else counters.values.get(tenant, counters.floor)

    def cost_of_prompt(self, tenant: str, num_computed: int, num_cached: int = 0) -> float:
        """Return by how much a prompt moves the counter: tokens to compute, and tokens found in the prefix tree."""
        return self.INPUT_WEIGHT * (num_computed + self.CACHED_FACTOR * num_cached) / self.weight_of(tenant)

    def start_waiting(self, tier: int, tenant: str) -> None:
        """One more request of the tenant waits."""
        counters = self._tiers.get(tier)
        if counters is None:
            counters = self._tiers[tier] = _TierCounters()
        if tenant in counters.num_waiting:
            counters.num_waiting[tenant] += 1
            return
        counters.raise_floor()
        counters.num_waiting[tenant] = 1
        counters.values[tenant] = max(counters.values.get(tenant, 0.0), counters.floor)
        if tenant not in counters.listed_active:
            counters.listed_active.add(tenant)
            heapq.heappush(counters.active, (counters.values[tenant], tenant))

    def stop_waiting(self, tier: int, tenant: str) -> None:
        """One request fewer of the tenant waits."""
        counters = self._tiers[tier]
        counters.num_waiting[tenant] -= 1
        if counters.num_waiting[tenant]:
            return
        del counters.num_waiting[tenant]
        if counters.num_waiting:
            counters.raise_floor()
        else:
            counters.floor = max(counters.floor, counters.values[tenant])
        counters.list_idle(tenant)
        self._forget(tier, counters)

    def charge(self, tier: int, tenant: str, num_weighted_tokens: float) -> None:
        """The tenant was served so many tokens, each times what its kind counts."""
        counters = self._tiers.get(tier)
        if counters is None:
            counters = self._tiers[tier] = _TierCounters()
        value = counters.values.get(tenant)
        counters.values[tenant] = (counters.floor if value is None else value) + num_weighted_tokens / self.weight_of(
            tenant
        )
        if value is None:
            counters.list_idle(tenant)
            self._forget(tier, counters)

    def _forget(self, tier: int, counters: _TierCounters) -> None:
        """Drop counters of idle tenants that the floor has overtaken, and the smallest beyond the cap."""
        idle = counters.idle
        while idle and (idle[0][0] <= counters.floor or len(idle) > self.MAX_IDLE):
            listed, tenant = heapq.heappop(idle)
            counters.listed_idle.discard(tenant)
            if tenant in counters.num_waiting:
                continue  # Listed again when it stops waiting.
            value = counters.values[tenant]
            if value > max(listed, counters.floor) and len(idle) < self.MAX_IDLE:
                counters.list_idle(tenant)
            else:
                del counters.values[tenant]
        if not counters.values:
            del self._tiers[tier]
