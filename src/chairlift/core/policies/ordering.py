"""Who of the waiting is looked at first.

Knows nothing of slots or pages, nor of tiers and tenants, which stand outside: a policy orders requests of one tier,
and under ``--tenant-order fair`` of one tenant. That nobody starves is not its business either: the guaranteed share
sees to that, whatever the order.
"""

from collections.abc import Callable
from math import inf
from typing import Protocol, runtime_checkable

from chairlift.core.views import RequestView


class OrderingPolicy(Protocol):
    """Orders waiting requests."""

    def rank(self, request: RequestView) -> float:
        """Return the request's rank, read once when it enters the queue; the lowest comes first, then the earliest."""
        ...


@runtime_checkable
class RerankingPolicy(Protocol):
    """An :class:`OrderingPolicy` whose ranks change while requests wait: the first few are ranked again each time."""

    @property
    def window(self) -> int:
        """How many requests, in the order of their rank at entry, are ranked again when the queue is looked at."""
        ...

    def rerank(self, request: RequestView, num_cached_tokens: int) -> float:
        """Return the rank for now; ``num_cached_tokens`` of its tokens are in the prefix tree."""
        ...


class Fcfs:
    """First come, first served. ``priority`` is this order too: tiers stand outside of it."""

    def rank(self, request: RequestView) -> float:
        """Rank everybody alike: arrival decides."""
        del request
        return 0.0


class LongestWaiting:
    """Whoever has waited longest; who yielded to somebody begins to wait anew. The order of ``preemptive``."""

    def rank(self, request: RequestView) -> float:
        """Rank by the time at which it arrived or yielded."""
        return float(request.waiting_since_ns)


class Deadline:
    """Earliest deadline first, by slack: who has to start earliest comes first, whoever has no deadline last.

    The earlier of first-token and last-token deadline counts, each less the time that is needed to get there. Slack
    shrinks equally fast for everybody who waits, so the order by the latest start is the order by slack at any time.

    Args:
        first_token_ns: the time a request needs to its first token.
        last_token_ns: the time it needs to its last one.
    """

    def __init__(
        self, first_token_ns: Callable[[RequestView], int], last_token_ns: Callable[[RequestView], int]
    ) -> None:
        self._first_token_ns = first_token_ns
        self._last_token_ns = last_token_ns

    def rank(self, request: RequestView) -> float:
        """Rank by the latest start that meets the deadline."""
        latest_ns = inf
        if request.ttft_deadline_ns is not None and request.num_output_tokens == 0:
            latest_ns = request.ttft_deadline_ns - self._first_token_ns(request)
        if request.deadline_ns is not None:
            latest_ns = min(latest_ns, request.deadline_ns - self._last_token_ns(request))
        return latest_ns


class Shortest:
    """Least predicted work first: tokens to compute, and output tokens as far as they can be foretold.

    An output token counts more than a prompt token, since it takes a row of a step of its own.

    Args:
        remaining_outputs: output tokens a request is expected to want yet.
        output_weight: what an output token counts.
    """

    def __init__(self, remaining_outputs: Callable[[RequestView], int], output_weight: float) -> None:
        self._remaining_outputs = remaining_outputs
        self._output_weight = output_weight

    def rank(self, request: RequestView) -> float:
        """Rank by the predicted work that is left."""
        to_compute = request.num_tokens - request.num_computed_tokens
        return to_compute + self._output_weight * self._remaining_outputs(request)


class LongestPrefix:
    """Longest cached prefix first among the first few in order of arrival, so that pages are used before they go."""

    window = 64

    def rank(self, request: RequestView) -> float:
        """Rank everybody alike: arrival decides who is in the window."""
        del request
        return 0.0

    def rerank(self, request: RequestView, num_cached_tokens: int) -> float:
        """Rank by the tokens that need not be computed."""
        del request
        return -float(num_cached_tokens)
