"""Which waiting requests stand aside, and for whose computing of their prefix.

Knows nothing of pages or steps: it is told how far those are whom the others wait for.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from chairlift.core.waiting_lanes import Cohort, Lane, Tier


class _Sleeper(NamedTuple):
    """A cohort that waits until its ``num_pages`` common pages are computed, or enough of them.

    It does so no more if the cohort has woken since, or has fallen asleep anew.
    """

    num_pages: int
    number: int
    tier: Tier
    lane: Lane
    cohort: Cohort

    @property
    def is_asleep(self) -> bool:
        return self.cohort.is_asleep and self.cohort.turn == self.number


class SleepingCohorts:
    """Cohorts that wait for a prefix, by the request that computes it. A step asks each of these once how far it is."""

    def __init__(self) -> None:
        self._waiting_for: dict[int, list[_Sleeper]] = {}
        self._num_put = 0

    @property
    def num_requests(self) -> int:
        """Requests in all of them."""
        sleepers = (sleeper for heap in self._waiting_for.values() for sleeper in heap)
        return sum(sleeper.cohort.num_requests for sleeper in sleepers if sleeper.is_asleep)

    def put(self, computer_id: int, num_pages: int, tier: Tier, lane: Lane, cohort: Cohort) -> None:
        """An awake cohort falls asleep: the request computes the ``num_pages`` pages that it shares with it."""
        self._num_put += 1
        cohort.is_asleep = True
        cohort.turn = self._num_put
        heap = self._waiting_for.setdefault(computer_id, [])
        heapq.heappush(heap, _Sleeper(num_pages, self._num_put, tier, lane, cohort))

    def wake(self, count_useless: Callable[[int], int | None]) -> None:
        """Wake those who need not wait any more.

        Args:
            count_useless: to share no more than so many pages with this request is no reason to wait for it; ``None``
                if it is not worth waiting for whatever is shared.
        """
        for computer_id, heap in list(self._waiting_for.items()):
            num_useless = count_useless(computer_id)
            while heap and (num_useless is None or heap[0].num_pages <= num_useless):
                sleeper = heapq.heappop(heap)
                if sleeper.is_asleep:
                    sleeper.tier.wake(sleeper.lane, sleeper.cohort)
            if not heap:
                del self._waiting_for[computer_id]

    def clear(self) -> None:
        """Forget all of them."""
        self._waiting_for.clear()
