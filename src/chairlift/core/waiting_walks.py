"""Ways through one tier of the waiting queue: to decide who starts, or just to see who stands where.

Knows nothing of what is decided.
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from chairlift.core.request import Request
from chairlift.core.waiting_lanes import Entry, Lane, Tier


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
        self._taken.append(self._lane.take())
        return entry[4]

    def hold_back_lane(self) -> Lane | None:
        """Skip the rest of the lane."""
        self._is_over = True
        return self._lane

    def let_go(self) -> tuple[Lane, Entry]:
        """Return the entry of the request that came last, not to be put back, and its lane."""
        return self._lane, self._taken.pop()

    def close(self) -> None:
        """Put back what was taken."""
        for entry in self._taken:
            heapq.heappush(self._lane.entries, entry)
        self._taken.clear()


class TierWalk:
    """Looks at a tier's requests in order without taking them out; :meth:`close` puts everything back.

    Nobody may be pushed or removed in between. Each look is charged to the tenant for the time of the walk, as an
    admission would be, so that tenants take turns; whoever is let go costs nothing.

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
            cursor = _Cursor(first[1], len(self._cursors))
            self._cursors.append(cursor)
            heapq.heappush(self._open, (first[0], cursor.number, cursor))
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

    def let_go(self) -> tuple[Lane, Entry] | None:
        """Return the entry of the request that came last, not to be put back, and its lane."""
        cursor = self._last
        if cursor is None or cursor.last is None:
            return None
        entry, cursor.last = cursor.last, None
        cursor.taken.remove(entry)
        cursor.num_charged = cursor.num_charged_before
        return cursor.lane, entry

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
                if cursor.lane.first() is None:
                    break
                entry = cursor.lane.take()
                cursor.taken.append(entry)
                cursor.buffer.append(entry)
            _order_again(cursor.buffer, self._rerank)
        cursor.last = cursor.buffer.pop()
        request = cursor.last[4]
        cursor.num_charged_before = cursor.num_charged
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
            heapq.heappush(self._open, (self._tier.key(cursor.lane, entry, cursor.num_charged), cursor.number, cursor))


class _Cursor:
    """How far a walk has come in one lane."""

    __slots__ = ("buffer", "lane", "last", "num_charged", "num_charged_before", "number", "taken")

    def __init__(self, lane: Lane, number: int) -> None:
        self.lane = lane
        self.number = number
        self.taken: list[Entry] = []
        self.buffer: list[Entry] = []
        """Taken and not returned yet, next one last."""
        self.last: Entry | None = None
        self.num_charged = self.num_charged_before = 0.0


def list_tier(
    tier: Tier,
    charge: Callable[[Request], float] | None,
    rerank: Callable[[Request], float] | None,
    window: int,
) -> Iterator[Request]:
    """All requests of a tier in order, as a walk would find them if nobody waited for a prefix. Changes nothing.

    Costs time for each lane, unlike a walk. Arguments are those of :class:`TierWalk`.
    """
    heads = [
        (tier.key(lane, entry), number, lane)
        for number, lane in enumerate(tier.lanes.values())
        for entry in islice(lane.in_order(), 1)
    ]
    heapq.heapify(heads)
    opened: dict[int, tuple[_Cursor, Iterator[Entry]]] = {}
    while heads:
        _, number, lane = heapq.heappop(heads)
        if number not in opened:
            opened[number] = (_Cursor(lane, number), lane.in_order())
            _fill(*opened[number], rerank, window)
        cursor, rest = opened[number]
        request = cursor.buffer.pop()[4]
        yield request
        if charge is not None:
            cursor.num_charged += charge(request)
        if not cursor.buffer:
            _fill(cursor, rest, rerank, window)
        if cursor.buffer:
            heapq.heappush(heads, (tier.key(lane, min(cursor.buffer), cursor.num_charged), number, lane))


def _fill(cursor: _Cursor, rest: Iterator[Entry], rerank: Callable[[Request], float] | None, window: int) -> None:
    cursor.buffer.extend(islice(rest, max(window, 1)))
    _order_again(cursor.buffer, rerank)


def _order_again(buffer: list[Entry], rerank: Callable[[Request], float] | None) -> None:
    """Bring entries into the order of their ranks now, if these change, next one last."""
    if rerank is not None:
        buffer.sort(key=lambda entry: (entry[0], rerank(entry[4]), entry[1:4]))
    buffer.reverse()
