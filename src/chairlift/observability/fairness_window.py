"""Jain's index of the service that tenants got over the last minute.

Knows nothing of how service is measured; callers bring the time.

Only tenants that had unfinished requests at every look within the window count: one that asks for little gets little,
and that is no injustice.
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
    """Looks at the service now and then, and compares what each tenant gained over the window.

    Args:
        window_s: how far back it looks.
        interval_s: time between two looks at least.
    """

    def __init__(self, window_s: float = 60.0, interval_s: float = 1.0) -> None:
        self._interval_ns = int(interval_s * _NS_PER_S)
        self._looks: deque[tuple[int, dict[str, float]]] = deque()
        self._window_ns = int(window_s * _NS_PER_S)

    def wants_look(self, now_ns: int) -> bool:
        """Whether the last look is an interval ago."""
        return not self._looks or now_ns - self._looks[-1][0] >= self._interval_ns

    def look(self, now_ns: int, tenants: Mapping[str, TenantService]) -> float:
        """Take a look, and return the index over the window that ends with it."""
        busy = {name: tenant.weighted_tokens for name, tenant in tenants.items() if tenant.num_unfinished}
        self._looks.append((now_ns, busy))
        while now_ns - self._looks[0][0] > self._window_ns:
            self._looks.popleft()
        start = self._looks[0][1]
        always = [name for name in busy if all(name in look for _, look in self._looks)]
        # A series that began anew meanwhile has less than before; it counts from 0.
        return jain_index([max(busy[name] - start[name], 0.0) for name in always])
