"""How much waits, by tier and tenant, as running sums.

Knows nothing of the order within a tenant: what stands before a newcomer is estimated from sums, in constant time for
each tenant that waits, however long the queue is.
"""

from collections.abc import Callable
from typing import NamedTuple

from chairlift.core.request import Request


class Amount(NamedTuple):
    """Requests, and their tokens known so far."""

    num_requests: int
    num_tokens: int


_NOTHING = Amount(0, 0)
_Sums = list[int]


class Backlog:
    """Counts waiting requests; tenants and tiers without any are forgotten."""

    def __init__(self) -> None:
        self._tiers: dict[int, dict[str, _Sums]] = {}
        self._tenants: dict[str, _Sums] = {}

    def add(self, request: Request) -> None:
        """A request waits from now on. Its tokens must not change until it is removed."""
        self._count(request, 1, request.num_tokens)

    def remove(self, request: Request) -> None:
        """A request waits no longer."""
        self._count(request, -1, -request.num_tokens)

    def of_tenant(self, tenant: str) -> Amount:
        """What waits for this tenant, in all tiers."""
        sums = self._tenants.get(tenant)
        return Amount(sums[0], sums[1]) if sums is not None else _NOTHING

    def before(self, tier: int) -> Amount:
        """What stands before a newcomer of this tier if tenants do not count: its own tier and all more urgent ones."""
        return _sum([_total(sums) for other, sums in self._tiers.items() if other <= tier])

    def before_in_turn(self, tier: int, tenant: str, num_tokens: int, weight: Callable[[str], float]) -> Amount:
        """What stands before a newcomer of ``num_tokens`` if the tenants of its tier take turns by weight.

        More urgent tiers and the tenant's own requests stand before it. While those of its tenant and the newcomer are
        served, every other tenant gets its share in proportion, or all it has if that is less.
        """
        urgent = _sum([_total(sums) for other, sums in self._tiers.items() if other < tier])
        tenants = self._tiers.get(tier, {})
        own = tenants.get(tenant, [0, 0])
        own_service = (own[1] + num_tokens) / weight(tenant)
        num_requests, tokens = own[0], own[1]
        for name, sums in tenants.items():
            if name != tenant:
                part = min(1.0, own_service * weight(name) / max(sums[1], 1))
                num_requests += round(sums[0] * part)
                tokens += round(sums[1] * part)
        return Amount(urgent.num_requests + num_requests, urgent.num_tokens + tokens)

    def _count(self, request: Request, num_requests: int, num_tokens: int) -> None:
        tenant = request.tenant
        tier = self._tiers.setdefault(request.priority, {})
        for table in (tier, self._tenants):
            sums = table.get(tenant)
            if sums is None:
                sums = table[tenant] = [0, 0]
            sums[0] += num_requests
            sums[1] += num_tokens
            if not sums[0]:
                del table[tenant]
        if not tier:
            del self._tiers[request.priority]


def _total(tenants: dict[str, _Sums]) -> Amount:
    return Amount(sum(sums[0] for sums in tenants.values()), sum(sums[1] for sums in tenants.values()))


def _sum(amounts: list[Amount]) -> Amount:
    return Amount(sum(amount.num_requests for amount in amounts), sum(amount.num_tokens for amount in amounts))
