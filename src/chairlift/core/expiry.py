"""Which requests have waited too long, or can no longer be served in time.

Knows nothing of how a request is ended; it keeps one point in time for each request that has any limit.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import TypeAlias

from chairlift.core.request import FinishReason, Phase, Request

_Item: TypeAlias = tuple[int, int, Request]

_NS_PER_S = 1_000_000_000


class Expiry:
    """A heap of points in time at which a request has to be looked at; those that ended are skipped.

    - ``--queue-timeout`` ends who has not started by then (``timeout``), but nobody before a plan has looked at it: who
      can start at once does, also after a step that was longer than the timeout.
    - ``ttft_deadline_ns`` ends who has not started when too little time is left to compute the prompt (``deadline``).
      Who has started is let finish: the work is being done.
    - ``deadline_ns`` ends whoever waits when the time left does not suffice for one more token, and everybody when it
      has passed: nobody wants the rest.

    Args:
        queue_timeout_s: how long a request may wait for its first slot; for ever if ``None``.
        time_to_token_ns: the least time that a waiting request needs to its next token. It may change while requests
            wait; what it said earlier only tells when to ask again.
    """

    def __init__(self, queue_timeout_s: float | None, time_to_token_ns: Callable[[Request], int]) -> None:
        self._queue_timeout_s = queue_timeout_s
        self._time_to_token_ns = time_to_token_ns
        self._items: dict[int, _Item] = {}
        self._heap: list[_Item] = []
        self._num_pushed = 0
        self._new: set[int] = set()
        """Who has arrived since the last plan."""

    @property
    def next_ns(self) -> int | None:
        """When somebody has to be looked at next; ``None`` if nobody has any limit."""
        heap = self._heap
        while heap and self._items.get(heap[0][2].request_id) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def add(self, request: Request) -> None:
        """Watch a request that has just arrived."""
        self._new.add(request.request_id)  # a timeout may be set before the next plan
        self._watch(request)

    def looked_at(self) -> None:
        """A plan was made, and everybody who was there had the chance to start."""
        self._new.clear()

    def remove(self, request: Request) -> None:
        """A request ended."""
        self._new.discard(request.request_id)
        if self._items.pop(request.request_id, None) is not None and len(self._heap) > 2 * len(self._items) + 64:
            self._heap = list(self._items.values())
            heapq.heapify(self._heap)

    def take_due(self, now_ns: int) -> list[tuple[Request, FinishReason]]:
        """Return who has to end now, and why; they are not watched any more."""
        due: list[tuple[Request, FinishReason]] = []
        later: list[tuple[Request, int]] = []
        while (next_ns := self.next_ns) is not None and next_ns <= now_ns:
            request = heapq.heappop(self._heap)[2]
            del self._items[request.request_id]
            limits = self._limits(request)
            is_new = request.request_id in self._new
            reached = [
                limit for limit in limits if limit[0] <= now_ns and not (is_new and limit[1] is FinishReason.TIMEOUT)
            ]
            if reached:
                due.append((request, min(reached, key=lambda limit: limit[0])[1]))
            elif limits:
                later.append((request, min(limits, key=lambda limit: limit[0])[0]))
        for request, due_ns in later:
            self._push(request, due_ns)
        return due

    def reconfigure(self, queue_timeout_s: float | None, requests: Iterable[Request]) -> None:
        """Another queue timeout holds from now on, for those who wait too."""
        self._queue_timeout_s = queue_timeout_s
        self._items.clear()
        self._heap.clear()
        for request in requests:
            self._watch(request)

    def _watch(self, request: Request) -> None:
        if self._queue_timeout_s is None and request.ttft_deadline_ns is None and request.deadline_ns is None:
            return
        limits = self._limits(request)
        if limits:
            self._push(request, min(limits, key=lambda limit: limit[0])[0])

    def _push(self, request: Request, due_ns: int) -> None:
        self._num_pushed += 1
        item = (due_ns, self._num_pushed, request)
        self._items[request.request_id] = item
        heapq.heappush(self._heap, item)

    def _limits(self, request: Request) -> list[tuple[int, FinishReason]]:
        """Points in time at which the request ends if nothing changes, with the reason."""
        limits: list[tuple[int, FinishReason]] = []
        is_waiting = request.phase is not Phase.RUNNING
        is_fresh = request.phase is Phase.WAITING
        if is_fresh and self._queue_timeout_s is not None:
            limits.append((request.arrival_ns + round(self._queue_timeout_s * _NS_PER_S), FinishReason.TIMEOUT))
        has_deadline = request.deadline_ns is not None or (is_fresh and request.ttft_deadline_ns is not None)
        needed_ns = self._time_to_token_ns(request) if has_deadline and is_waiting else 0
        # Exactly at the deadline is in time.
        if is_fresh and request.ttft_deadline_ns is not None:
            limits.append((request.ttft_deadline_ns - needed_ns + 1, FinishReason.DEADLINE))
        if request.deadline_ns is not None:
            limits.append((request.deadline_ns - needed_ns + 1, FinishReason.DEADLINE))
        return limits
