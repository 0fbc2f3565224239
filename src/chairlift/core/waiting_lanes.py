"""Waiting requests of one tier: lanes of requests, and which lane is looked at next.

Knows nothing of tiers, of resources or of when to look. A lane holds requests that can be held back together, and under
``--tenant-order fair`` those of one tenant. Those of its requests that begin alike and wait for the same prefix stand
aside together, in a cohort.

Every heap here is cleaned when it is looked at: whoever left is skipped, and compacted away when the dead outnumber the
living, so leaving costs constant time.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import TypeAlias

from chairlift.core.request import Request

Entry: TypeAlias = tuple[int, float, int, int, Request]
"""Whether it never started, the policy's rank, arrival number, number of the push (never equal), the request."""

_MAX_HELD_BACK = 64
"""Lanes that are held back and looked past, to find the oldest request of the others."""


class Cohort:
    """Requests of a lane that begin with the same ``num_pages`` pages: until these are computed, all wait or none does.

    So those that were found to wait for a prefix are looked at one by one only once. A cohort that is asleep costs
    nothing, however large it is. While it is awake, its first request stands in the lane for all that are still in
    ``entries``; when that one is taken out, the next one does. Who was taken out and put back stays in the lane, as a
    member, until the cohort is asleep and its turn comes.
    """

    __slots__ = ("entries", "head", "is_asleep", "name", "num_pages", "num_requests", "turn")

    def __init__(self, name: Hashable, num_pages: int) -> None:
        self.name = name
        """The key of the last page that they have in common."""
        self.num_pages = num_pages
        self.num_requests = 0
        """Members that are alive, wherever they stand."""
        self.entries: list[Entry] = []
        self.head: Entry | None = None
        self.is_asleep = False
        self.turn = 0
        """Number of the last time that it fell asleep."""


class Lane:
    """Requests in order and by arrival.

    Args:
        tenant: whose they are, or the name that several tenants share.
        alive: maps ids to current entries, for all lanes together.
        cohort_of: maps ids of members to their cohorts, likewise.
    """

    __slots__ = (
        "_alive",
        "_by_arrival",
        "_cohort_of",
        "arrival_key",
        "cohorts",
        "entries",
        "is_held_back",
        "num_requests",
        "order_key",
        "tenant",
    )

    def __init__(self, tenant: str, alive: dict[int, Entry], cohort_of: dict[int, Cohort]) -> None:
        self.tenant = tenant
        self.num_requests = 0
        self.is_held_back = False
        """Whether its requests lack something that only their own tenant's requests can give back."""
        self.entries: list[Entry] = []
        """All but those that stand aside in a cohort."""
        self.cohorts: dict[Hashable, Cohort] = {}
        self.order_key: tuple[float, Entry] | None = None
        """What it is listed under in its tier; an entry of the tier's heap with another key object is stale."""
        self.arrival_key: tuple[int] | None = None
        self._by_arrival: list[tuple[int, int, Entry]] = []
        self._alive = alive
        self._cohort_of = cohort_of

    def push(self, entry: Entry) -> None:
        """Add a request."""
        self.num_requests += 1
        heapq.heappush(self.entries, entry)
        heapq.heappush(self._by_arrival, (entry[2], entry[3], entry))

    def remove(self, request_id: int) -> None:
        """A request of this lane is not alive any more."""
        self.num_requests -= 1
        self._leave_cohort(request_id)
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
        """Return the first entry in order, of those that do not wait for a prefix."""
        entries, cohort_of = self.entries, self._cohort_of
        while entries:
            entry = entries[0]
            if self.is_alive(entry):
                cohort = cohort_of.get(entry[4].request_id) if cohort_of else None
                if cohort is None or not cohort.is_asleep:
                    return entry
                heapq.heappush(cohort.entries, entry)
            heapq.heappop(entries)
        return None

    def take(self) -> Entry:
        """Take out the entry that :meth:`first` returned."""
        entry = heapq.heappop(self.entries)
        if self._cohort_of:
            cohort = self._cohort_of.get(entry[4].request_id)
            if cohort is not None and cohort.head is entry:
                self.let_next_stand(cohort)
        return entry

    def put_aside(self, entry: Entry, name: Hashable, num_pages: int) -> Cohort:
        """Put an entry that was taken out into its cohort, or if that shares fewer pages, into the one of this name.

        The cohort is about to sleep, if it does not. Other members that stand in the lane are skipped then.
        """
        request_id = entry[4].request_id
        cohort = self._cohort_of.get(request_id)
        if cohort is None or cohort.num_pages < num_pages:
            self._leave_cohort(request_id)
            cohort = self.cohorts.get(name)
            if cohort is None:
                cohort = self.cohorts[name] = Cohort(name, num_pages)
            cohort.num_requests += 1
            self._cohort_of[request_id] = cohort
        heapq.heappush(cohort.entries, entry)
        cohort.head = None
        return cohort

    def let_next_stand(self, cohort: Cohort) -> None:
        """The next of those in an awake cohort stands in the lane for all of them."""
        cohort.head = None
        while cohort.entries:
            entry = heapq.heappop(cohort.entries)
            if self.is_alive(entry):
                cohort.head = entry
                heapq.heappush(self.entries, entry)
                return

    def in_order(self) -> Iterator[Entry]:
        """All entries in order, those in cohorts too; takes out nothing."""
        heaps = [self.entries, *(cohort.entries for cohort in self.cohorts.values())]
        rest = [(heap[0], number, 0) for number, heap in enumerate(heaps) if heap]
        heapq.heapify(rest)
        while rest:
            entry, number, index = heapq.heappop(rest)
            heap = heaps[number]
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heapq.heappush(rest, (heap[child], number, child))
            if self.is_alive(entry):
                yield entry

    def oldest(self) -> Entry | None:
        """Return the entry that arrived first."""
        items = self._by_arrival
        while items and not self.is_alive(items[0][2]):
            heapq.heappop(items)
        return items[0][2] if items else None

    def _leave_cohort(self, request_id: int) -> None:
        cohort = self._cohort_of.pop(request_id, None)
        if cohort is None:
            return
        cohort.num_requests -= 1
        if cohort.num_requests == 0:
            del self.cohorts[cohort.name]
            cohort.is_asleep = False
        elif cohort.head is not None and cohort.head[4].request_id == request_id:
            self.let_next_stand(cohort)
        if len(cohort.entries) > 2 * cohort.num_requests + 64:
            cohort.entries = [entry for entry in cohort.entries if self.is_alive(entry)]
            heapq.heapify(cohort.entries)


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

    def remove(self, lane: Lane, request_id: int) -> None:
        """One of the lane's requests is not alive any more."""
        lane.remove(request_id)
        self.num_requests -= 1
        if lane.num_requests == 0:
            del self.lanes[lane.tenant]
            lane.order_key = lane.arrival_key = None

    def first_lane(self) -> tuple[tuple[float, Entry], Lane] | None:
        """Return the lane that is next, with its key."""
        heap = self._in_order
        while heap:
            key, _, lane = heap[0]
            if lane.order_key is not key:
                heapq.heappop(heap)
                continue
            entry = lane.first()
            if entry is None:  # All of them are asleep.
                heapq.heappop(heap)
                lane.order_key = None
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

    def wake(self, lane: Lane, cohort: Cohort) -> None:
        """The cohort's requests are looked at again."""
        cohort.is_asleep = False
        lane.let_next_stand(cohort)
        entry = cohort.head
        if entry is not None and (lane.order_key is None or self.key(lane, entry) < lane.order_key):
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
