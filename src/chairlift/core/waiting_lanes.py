"""Waiting requests of one tier: lanes of requests, and which lane is looked at next.

Knows nothing of tiers, of resources or of when to look. A lane holds requests that can be held back together, and under
``--tenant-order fair`` those of one tenant.

Every heap here is cleaned when it is looked at: whoever left is skipped, and compacted away when the dead outnumber the
living, so leaving costs constant time.
"""

import heapq
from collections.abc import Callable
from typing import TypeAlias

from chairlift.core.request import Request

Entry: TypeAlias = tuple[int, float, int, int, Request]
"""Whether it never started, the policy's rank, arrival number, number of the push (never equal), the request."""

_MAX_HELD_BACK = 64
"""Lanes that are held back and looked past, to find the oldest request of the others."""


class Lane:
    """Requests in order and by arrival. ``alive`` maps ids to current entries, for all lanes together."""

    __slots__ = (
        "_alive",
        "_by_arrival",
        "arrival_key",
        "entries",
        "is_held_back",
        "num_requests",
        "order_key",
        "tenant",
    )

    def __init__(self, tenant: str, alive: dict[int, Entry]) -> None:
        self.tenant = tenant
        self.num_requests = 0
        self.is_held_back = False
        """Whether its requests lack something that only their own tenant's requests can give back."""
        self.entries: list[Entry] = []
        self.order_key: tuple[float, Entry] | None = None
        """What it is listed under in its tier; an entry of the tier's heap with another key object is stale."""
        self.arrival_key: tuple[int] | None = None
        self._by_arrival: list[tuple[int, int, Entry]] = []
        self._alive = alive

    def push(self, entry: Entry) -> None:
        """Add a request."""
        self.num_requests += 1
        heapq.heappush(self.entries, entry)
        heapq.heappush(self._by_arrival, (entry[2], entry[3], entry))

    def remove(self) -> None:
        """A request of this lane is not alive any more."""
        self.num_requests -= 1
        limit = 2 * self.num_requests + 64
        if len(self.entries) > limit:
            self.entries = [entry for entry in self.entries if self.is_alive(entry)]
            heapq.heapify(self.entries)
        if len(self._by_arrival) > limit:
            self._by_arrival = [item for item in self._by_arrival if self.is_alive(item[2])]
            heapq.heapify(self._by_arrival)

    def is_alive(self, entry: Entry) -> bool:
        """Whether the entry is the request's current one."""
        return self._alive.get(entry[4].request_id) is entry

    def first(self) -> Entry | None:
        """Return the first entry in order."""
        entries = self.entries
        while entries and not self.is_alive(entries[0]):
            heapq.heappop(entries)
        return entries[0] if entries else None

    def oldest(self) -> Entry | None:
        """Return the entry that arrived first."""
        items = self._by_arrival
        while items and not self.is_alive(items[0][2]):
            heapq.heappop(items)
        return items[0][2] if items else None


class Tier:
    """Lanes of one tier, ordered by a counter (or all alike), then by their first entries.

    A lane is listed under a key that may be too low by now, never too high: counters only grow, and whoever makes a
    lane's first entry better lists it again. So the lane whose key at the top of the heap is up to date is the first.
    """

    def __init__(self, counter: Callable[[str], float] | None) -> None:
        self.lanes: dict[str, Lane] = {}
        self.num_requests = 0
        self._counter = counter
        self._in_order: list[tuple[tuple[float, Entry], int, Lane]] = []
        self._by_arrival: list[tuple[tuple[int], int, Lane]] = []
        self._num_listed = 0

    def key(self, lane: Lane, entry: Entry, num_charged: float = 0.0) -> tuple[float, Entry]:
        """Return where the lane stands if ``entry`` is its first one and ``num_charged`` were on its counter."""
        counter = 0.0 if self._counter is None else self._counter(lane.tenant)
        return (counter + num_charged, entry)

    def push(self, lane: Lane, entry: Entry) -> None:
        """Add a request to one of the tier's lanes."""
        lane.push(entry)
        self.num_requests += 1
        if lane.order_key is None or self.key(lane, entry) < lane.order_key:
            self._list_in_order(lane, self.key(lane, entry))
        if lane.arrival_key is None or (entry[2],) < lane.arrival_key:
            self._list_by_arrival(lane, (entry[2],))

    def remove(self, lane: Lane) -> None:
        """One of the lane's requests is not alive any more."""
        lane.remove()
        self.num_requests -= 1
        if lane.num_requests == 0:
            del self.lanes[lane.tenant]
            lane.order_key = lane.arrival_key = None

    def first_lane(self) -> tuple[tuple[float, Entry], Lane] | None:
        """Return the lane that is next, with its key."""
        heap = self._in_order
        while heap:
            key, _, lane = heap[0]
            entry = lane.first() if lane.order_key is key else None
            if entry is None:
                heapq.heappop(heap)
                continue
            current = self.key(lane, entry)
            if current == key:
                return key, lane
            heapq.heappop(heap)
            self._list_in_order(lane, current)
        return None

    def take_first_lane(self) -> None:
        """Unlist the lane that :meth:`first_lane` returned, until :meth:`put_back`."""
        _, _, lane = heapq.heappop(self._in_order)
        lane.order_key = None

    def put_back(self, lane: Lane, taken: list[Entry]) -> None:
        """List a lane again, with the entries that were taken out of it."""
        for entry in taken:
            heapq.heappush(lane.entries, entry)
        entry = lane.first()
        if entry is not None:
            self._list_in_order(lane, self.key(lane, entry))

    def oldest(self) -> Request | None:
        """Return the request that arrived first, of those in lanes that are not held back."""
        heap = self._by_arrival
        held_back: list[tuple[tuple[int], int, Lane]] = []
        found: Request | None = None
        while heap and found is None and len(held_back) < _MAX_HELD_BACK:
            item = heapq.heappop(heap)
            key, _, lane = item
            entry = lane.oldest() if lane.arrival_key is key else None
            if entry is None:
                continue
            if (entry[2],) != key:
                self._list_by_arrival(lane, (entry[2],))
                continue
            held_back.append(item)
            if not lane.is_held_back:
                found = entry[4]
        for item in held_back:
            heapq.heappush(heap, item)
        return found

    def _list_in_order(self, lane: Lane, key: tuple[float, Entry]) -> None:
        lane.order_key = key
        self._num_listed += 1
        heapq.heappush(self._in_order, (key, self._num_listed, lane))
        if len(self._in_order) > 2 * len(self.lanes) + 64:
            # In place, like below: whoever walks through the heap meanwhile must not be left with an old one.
            self._in_order[:] = [item for item in self._in_order if item[2].order_key is item[0]]
            heapq.heapify(self._in_order)

    def _list_by_arrival(self, lane: Lane, key: tuple[int]) -> None:
        lane.arrival_key = key
        self._num_listed += 1
        heapq.heappush(self._by_arrival, (key, self._num_listed, lane))
        if len(self._by_arrival) > 2 * len(self.lanes) + 64:
            self._by_arrival[:] = [item for item in self._by_arrival if item[2].arrival_key is item[0]]
            heapq.heapify(self._by_arrival)


class LaneWalk:
    """The same as :class:`TierWalk` for a tier that has one lane, in which nobody is ranked again."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._taken: list[Entry] = []
        self._is_over = False

    def next(self) -> Request | None:
        """Return the next request, or ``None`` at the end."""
        entry = None if self._is_over else self._lane.first()
        if entry is None:
            return None
        heapq.heappop(self._lane.entries)
        self._taken.append(entry)
        return entry[4]

    def hold_back_lane(self) -> Lane | None:
        """Skip the rest of the lane."""
        self._is_over = True
        return self._lane

    def close(self) -> None:
        """Put back what was taken."""
        for entry in self._taken:
            heapq.heappush(self._lane.entries, entry)
        self._taken.clear()


class TierWalk:
    """Looks at a tier's requests in order without taking them out; :meth:`close` puts everything back.

    Nobody may be pushed or removed in between. Each look is charged to the tenant for the time of the walk, as an
    admission would be, so that tenants take turns.

    Args:
        tier: what to walk through.
        charge: what looking at a request adds to its tenant's counter.
        rerank: ranks requests again; entries keep their order if absent.
        window: how many entries of a lane are ranked again together.
    """

    def __init__(
        self,
        tier: Tier,
        charge: Callable[[Request], float] | None,
        rerank: Callable[[Request], float] | None,
        window: int,
    ) -> None:
        self._tier = tier
        self._charge = charge
        self._rerank = rerank
        self._window = max(window, 1)
        self._open: list[tuple[tuple[float, Entry], int, _Cursor]] = []
        self._cursors: list[_Cursor] = []
        self._last: _Cursor | None = None

    def next(self) -> Request | None:
        """Return the next request, or ``None`` at the end."""
        self._reopen_last()
        first = self._tier.first_lane()
        while first is not None and (not self._open or first[0] < self._open[0][0]):
            self._tier.take_first_lane()
            cursor = _Cursor(first[1])
            self._cursors.append(cursor)
            heapq.heappush(self._open, (first[0], len(self._cursors), cursor))
            first = self._tier.first_lane()
        if not self._open:
            return None
        self._last = heapq.heappop(self._open)[2]
        return self._take(self._last)

    def hold_back_lane(self) -> Lane | None:
        """Skip the rest of the lane whose request came last."""
        lane = None if self._last is None else self._last.lane
        self._last = None
        return lane

    def close(self) -> None:
        """Put back what was taken."""
        for cursor in self._cursors:
            self._tier.put_back(cursor.lane, cursor.taken)
        self._cursors.clear()
        self._open.clear()
        self._last = None

    def _take(self, cursor: "_Cursor") -> Request:
        if not cursor.buffer:
            for _ in range(self._window):
                entry = cursor.lane.first()
                if entry is None:
                    break
                heapq.heappop(cursor.lane.entries)
                cursor.taken.append(entry)
                cursor.buffer.append(entry)
            rerank = self._rerank
            if rerank is not None:
                cursor.buffer.sort(key=lambda entry: (entry[0], rerank(entry[4]), entry[1:4]))
            cursor.buffer.reverse()
        request = cursor.buffer.pop()[4]
        if self._charge is not None:
            cursor.num_charged += self._charge(request)
        return request

    def _reopen_last(self) -> None:
        """Bring the lane that was looked at last back into the order."""
        cursor, self._last = self._last, None
        if cursor is None:
            return
        entry = min(cursor.buffer) if cursor.buffer else cursor.lane.first()
        if entry is not None:
            number = self._cursors.index(cursor) + 1
            heapq.heappush(self._open, (self._tier.key(cursor.lane, entry, cursor.num_charged), number, cursor))


class _Cursor:
    """How far a walk has come in one lane."""

    __slots__ = ("buffer", "lane", "num_charged", "taken")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.taken: list[Entry] = []
        self.buffer: list[Entry] = []
        """Taken and not returned yet, next one last."""
        self.num_charged = 0.0
