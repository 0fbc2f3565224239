"""Waiting requests in the order in which the scheduler looks at them.

Knows nothing of resources; it only keeps the order: tier, then preempted before never started, then the ordering
policy's rank, then arrival.
"""

import heapq
from collections.abc import Iterator

from chairlift.core.backlog import Backlog
from chairlift.core.policies.ordering import OrderingPolicy
from chairlift.core.request import Phase, Request

_Entry = tuple[int, int, float, int, int, Request]


class WaitingQueue:
    """A heap with constant-time removal: removed entries are skipped when they come up.

    Looking at the first few takes them out and puts them back, so the cost grows with how many are looked at and not
    with how many wait.
    """

    def __init__(self, ordering: OrderingPolicy) -> None:
        self._ordering = ordering
        self._heap: list[_Entry] = []
        self._entries: dict[int, _Entry] = {}
        self._num_pushed = 0
        self.backlog = Backlog()
        """What waits, by tier and tenant."""
        self.num_tokens = 0
        """Tokens of all waiting requests, as known when they entered."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in order; sorts, so for checks and listings only."""
        return (entry[5] for entry in sorted(self._entries.values(), key=lambda entry: entry[:5]))

    def push(self, request: Request) -> None:
        """Add a request that is waiting or preempted."""
        is_fresh = int(request.phase is not Phase.PREEMPTED)
        # The push number keeps a stale entry of the same request from comparing equal, and requests from comparing.
        self._num_pushed += 1
        rank = self._ordering.rank(request)
        entry = (request.priority, is_fresh, rank, request.sequence, self._num_pushed, request)
        self._entries[request.request_id] = entry
        self.backlog.add(request)
        self.num_tokens += request.num_tokens
        heapq.heappush(self._heap, entry)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._entries[request.request_id]
        self.backlog.remove(request)
        self.num_tokens -= request.num_tokens
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def first(self, limit: int) -> list[Request]:
        """Return the first ``limit`` requests in order, without taking them out."""
        taken: list[_Entry] = []
        while self._heap and len(taken) < limit:
            entry = heapq.heappop(self._heap)
            if self._entries.get(entry[5].request_id) is entry:
                taken.append(entry)
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [entry[5] for entry in taken]
