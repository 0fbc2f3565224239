"""Who of the waiting is looked at first.

Knows nothing of slots or pages. Tiers stand outside of it: a policy orders requests of one tier.
"""

from typing import Protocol

from chairlift.core.views import RequestView


class OrderingPolicy(Protocol):
    """Orders waiting requests of one tier."""

    def rank(self, request: RequestView) -> float:
        """Return the request's rank, read once when it enters the queue; the lowest comes first, then the earliest."""
        ...


class Fcfs:
    """First come, first served."""

    def rank(self, request: RequestView) -> float:
        """Rank everybody alike: arrival decides."""
        del request
        return 0.0
