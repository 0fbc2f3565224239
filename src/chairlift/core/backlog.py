"""How much waits, by tier and tenant, as running sums.

Knows nothing of the order within a tenant: what stands before a newcomer is estimated from sums, in constant time for
each tenant that waits, however long the queue is.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from chairlift.core.request import Request


class Amount(NamedTuple):
    """Requests, and their tokens known so far."""

    num_requests: int
    num_tokens: int


_NOTHING = Amount(0, 0)
_MOST_TENANTS = 64
"""Tenants of a tier that are looked at one by one; more are taken together."""
_Sums = list[int]


class _Tier:
    """Sums of one tier, in all and by tenant."""

    __slots__ = ("tenants", "total")

    def __init__(self) -> None:
        self.total: _Sums = [0, 0]
        self.tenants: dict[str, _Sums] = {}


class Backlog:
    """Counts waiting requests; tenants and tiers without any are forgotten."""

    def __init__(self) -> None:
        self._tiers: dict[int, _Tier] = {}
        self._tenants: dict[str, _Sums] = {}

    def add(self, request: Request) -> None:
        """A request waits from now on. Its tokens must not change until it is removed."""
        tier = self._tiers.get(request.priority)
        if tier is None:
            tier = self._tiers[request.priority] = _Tier()
        num_tokens = request.num_tokens
        tier.total[0] += 1
        tier.total[1] += num_tokens
        for table in (tier.tenants, self._tenants):
            sums = table.get(request.tenant)
            if sums is None:
                table[request.tenant] = [1, num_tokens]
            else:
                sums[0] += 1
                sums[1] += num_tokens

    def remove(self, request: Request) -> None:
        """A request waits no longer."""
        tier = self._tiers[request.priority]
        num_tokens = request.num_tokens
        tier.total[0] -= 1
        tier.total[1] -= num_tokens
        for table in (tier.tenants, self._tenants):
            sums = table[request.tenant]
            sums[0] -= 1
            sums[1] -= num_tokens
            if sums[0] == 0:
                del table[request.tenant]
        if tier.total[0] == 0:
            del self._tiers[request.priority]

    @property
    def tiers(self) -> set[int]:
        """Those with anything waiting."""
        return set(self._tiers)

    def by_tenant(self) -> Iterator[tuple[str, Amount]]:
        """What waits for each tenant that waits, in all tiers."""
        for tenant, (num_requests, num_tokens) in self._tenants.items():
            yield tenant, Amount(num_requests, num_tokens)

    def of_tenant(self, tenant: str) -> Amount:
        """What waits for this tenant, in all tiers."""
        sums = self._tenants.get(tenant)
        return Amount(sums[0], sums[1]) if sums is not None else _NOTHING

    def before(self, tier: int) -> Amount:
        """What stands before a newcomer of this tier if tenants do not count: its own tier and all more urgent ones."""
        num_requests = num_tokens = 0
        for other, sums in self._tiers.items():
            if other <= tier:
                num_requests += sums.total[0]
                num_tokens += sums.total[1]
        return Amount(num_requests, num_tokens)

    def before_in_turn(self, tier: int, tenant: str, num_tokens: int, weight: Callable[[str], float]) -> Amount:
        """What stands before a newcomer of ``num_tokens`` if the tenants of its tier take turns by weight.

        More urgent tiers and the tenant's own requests stand before it. While those of its tenant and the newcomer are
        served, every other tenant gets its share in proportion, or all it has if that is less.
        """
        urgent = self.before(tier - 1)
        sums = self._tiers.get(tier)
        if sums is None:
            return urgent
        own = sums.tenants.get(tenant, [0, 0])
        own_service = (own[1] + num_tokens) / weight(tenant)
        num_requests, tokens = urgent.num_requests + own[0], urgent.num_tokens + own[1]
        for others, other_weight in self._others(sums, tenant, own, weight):
            part = min(1.0, own_service * other_weight / max(others[1], 1))
            num_requests += round(others[0] * part)
            tokens += round(others[1] * part)
        return Amount(num_requests, tokens)

    def _others(
        self, tier: _Tier, tenant: str, own: _Sums, weight: Callable[[str], float]
    ) -> Iterator[tuple[_Sums, float]]:
        """The other tenants of a tier with their weights; if there are very many, all together with the usual one."""
        num_others = len(tier.tenants) - (tenant in tier.tenants)
        if num_others > _MOST_TENANTS:
            yield [tier.total[0] - own[0], tier.total[1] - own[1]], float(num_others)
            return
        for name, sums in tier.tenants.items():
            if name != tenant:
                yield sums, weight(name)
