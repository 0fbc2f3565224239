"""Jain's index of the service that tenants got lately.

Knows nothing of how service is measured; callers bring the time.

Only tenants that had unfinished requests all the time are compared: one that asks for little gets little, and that is
no injustice. A tenant counts once it has had work for a while, and the index is over the time that all who count had
it::

    a  ──────────────────────────────────────── work
    b            ────────────────────────────── work
    c                                    ────── too new to count
                 <────── compared ──────────> now
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

_NS_PER_S = 1_000_000_000


class TenantService(NamedTuple):
    """What one tenant got since the start, divided by its weight, and how many of its requests are unfinished."""

    weighted_tokens: float
    num_unfinished: int


def jain_index(shares: list[float]) -> float:
    """1 if all shares are equal, 1/n if one has everything; 1 for fewer than two."""
    total = sum(shares)
    if len(shares) < 2 or total == 0:
        return 1.0
    return total * total / (len(shares) * sum(share * share for share in shares))


class FairnessWindow:
    """Looks at the service now and then, and compares what each tenant gained.

    Args:
        window_s: how far back it looks at most.
        least_s: how long a tenant must have had work to be compared.
        interval_s: time between two looks at least.
    """

    def __init__(self, window_s: float = 60.0, least_s: float = 10.0, interval_s: float = 1.0) -> None:
        self._window_ns, self._least_ns = int(window_s * _NS_PER_S), int(least_s * _NS_PER_S)
        self._interval_ns = int(interval_s * _NS_PER_S)
        self._looks: deque[tuple[int, dict[str, float]]] = deque()
        self._busy_since_ns: dict[str, int] = {}

    def wants_look(self, now_ns: int) -> bool:
        """Whether the last look is an interval ago."""
        return not self._looks or now_ns - self._looks[-1][0] >= self._interval_ns

    def look(self, now_ns: int, tenants: Mapping[str, TenantService]) -> float:
        """Take a look, and return the index over the time that ends with it."""
        busy = {name: tenant.weighted_tokens for name, tenant in tenants.items() if tenant.num_unfinished}
        self._busy_since_ns = {name: self._busy_since_ns.get(name, now_ns) for name in busy}
        self._looks.append((now_ns, busy))
        while now_ns - self._looks[0][0] > self._window_ns:
            self._looks.popleft()
        since_ns = {
            name: time_ns for name, time_ns in self._busy_since_ns.items() if now_ns - time_ns >= self._least_ns
        }
        if not since_ns:
            return 1.0
        start_ns = max(since_ns.values())
        start = next(service for time_ns, service in self._looks if time_ns >= start_ns)
        # A series that began anew meanwhile has less than before; it counts from 0.
        return jain_index([max(busy[name] - start[name], 0.0) for name in since_ns])
