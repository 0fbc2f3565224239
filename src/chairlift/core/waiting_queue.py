"""Waiting requests in the order in which the scheduler looks at them.

Knows nothing of resources; it only keeps the order: promoted requests, then by tier, by tenant (where tenants take
turns), preempted before never started, by the ordering policy's rank, by arrival. Those that wait for a prefix keep
their places and are not looked at.
"""

from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import NamedTuple

from chairlift.core.backlog import Backlog
from chairlift.core.fairness import VirtualCounters
from chairlift.core.policies.ordering import OrderingPolicy, RerankingPolicy
from chairlift.core.request import BlockedOn, Phase, Request
from chairlift.core.waiting_lanes import Cohort, Entry, Lane, Tier
from chairlift.core.waiting_prefixes import SleepingCohorts
from chairlift.core.waiting_walks import LaneWalk, TierWalk, list_tier

_SHARED_LANE = "\0"
"""Of all tenants that have no lane of their own; the name of none, not even of the nameless one."""


class Prefix(NamedTuple):
    """What a waiting request has in common with one that computes it: so many pages, named by the last one's key."""

    computer_id: int
    num_pages: int
    name: Hashable


class WaitingQueue:
    """Adding costs the logarithm of the length, removing constant time, and looking only what is looked at.

    Args:
        ordering: orders requests of a tier (and tenant).
        counters: told who waits, and asked for whose turn it is if ``is_fair``.
        is_fair: whether tenants of a tier take turns by their counters.
        has_own_lane: whether a tenant's requests can be held back together; under ``is_fair`` everybody's can.
        count_cached: tokens of a request that are in the prefix tree, for policies that rank again.
        peek_cached: the same without making page keys, for those who only look: a look must not change a plan.
    """

    def __init__(
        self,
        ordering: OrderingPolicy,
        counters: VirtualCounters,
        *,
        is_fair: bool = False,
        has_own_lane: Callable[[str], bool] = lambda _: False,
        count_cached: Callable[[Request], int] = lambda _: 0,
        peek_cached: Callable[[Request], int] | None = None,
    ) -> None:
        self.backlog = Backlog()
        """What waits, by tier and tenant."""
        self.num_tokens = 0
        """Tokens of all waiting requests, as known when they entered."""
        self.blocked_on: BlockedOn | None = None
        """What those lack whom the scheduler did not look at last time: what the one it stopped at lacked."""
        self._counters = counters
        self._count_cached = count_cached
        self._peek_cached = peek_cached or count_cached
        self._alive: dict[int, Entry] = {}
        self._promoted: dict[int, tuple[float, int, Request]] = {}
        self._tiers: dict[int, Tier] = {}
        self._tier_order: list[int] = []
        self._held_back: list[Lane] = []
        self._cohort_of: dict[int, Cohort] = {}
        self._sleeping = SleepingCohorts()
        self._num_pushed = 0
        self._set_order(ordering, is_fair, has_own_lane)

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._alive

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in order; sorts, so for checks and listings only."""
        yield from self.promoted
        for tier in self._tier_order:
            charge = self._expected_charge if self._is_fair else None
            yield from list_tier(self._tiers[tier], charge, self._peek_rank, self._window)

    @property
    def tiers(self) -> Sequence[int]:
        """Tiers with waiting requests that are not promoted, most urgent first."""
        return self._tier_order

    @property
    def promoted(self) -> Sequence[Request]:
        """Promoted requests that wait, in the order of their turns."""
        return [request for _, _, request in sorted(self._promoted.values())] if self._promoted else ()

    def turn(self, request: Request) -> float | None:
        """Return the turn that a waiting request was promoted for; ``None`` if it was not."""
        promoted = self._promoted.get(request.request_id)
        return None if promoted is None else promoted[0]

    def push(self, request: Request) -> None:
        """Add a request that is waiting or preempted."""
        self._place(request)
        self.backlog.add(request)
        self.num_tokens += request.num_tokens
        self._counters.start_waiting(request.priority, request.tenant)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._alive[request.request_id]
        if self._promoted.pop(request.request_id, None) is None:
            self._leave_lane(request)
        self.backlog.remove(request)
        self.num_tokens -= request.num_tokens
        self._counters.stop_waiting(request.priority, request.tenant)

    def promote(self, request: Request, turn: float) -> None:
        """Put a waiting request before everybody but those promoted for an earlier turn.

        If it has to wait again later, its turn is past.
        """
        del self._alive[request.request_id]
        self._leave_lane(request)
        request.is_promoted = True
        self._place(request, turn)

    @property
    def num_waiting_for_prefix(self) -> int:
        """Requests that a walk does not look at, since somebody computes what they begin with."""
        return self._sleeping.num_requests

    def waits_for_prefix(self, request: Request) -> bool:
        """Whether it is one of these."""
        cohort = self._cohort_of.get(request.request_id)
        return cohort is not None and cohort.is_asleep

    @property
    def has_sleepers(self) -> bool:
        """Whether there may be any."""
        return bool(self._cohort_of)

    def wake(self, count_useless: Callable[[int], int | None]) -> None:
        """Look again at those who need not wait for a prefix any more; see :meth:`.SleepingCohorts.wake`."""
        self._sleeping.wake(count_useless)

    def list_first(self, limit: int) -> list[Request]:
        """Return the first ``limit`` requests in order, those that wait for a prefix too. Changes nothing."""
        # Without any it is the same, and costs no time for each lane.
        return list(islice(self, limit)) if self._cohort_of else self.first(limit)

    def first(self, limit: int) -> list[Request]:
        """Return the first ``limit`` requests in order that wait for no prefix. Changes no order."""
        found: list[Request] = []
        with self.peek() as walk:
            while len(found) < limit and (request := walk.next()) is not None:
                found.append(request)
        return found

    def walk(self) -> "QueueWalk":
        """Look at the requests in order, one by one, to decide who starts: nobody is held back any more."""
        for lane in self._held_back:
            lane.is_held_back = False
        self._held_back.clear()
        return QueueWalk(self)

    def peek(self) -> "QueueWalk":
        """Look at the requests in order, one by one, without deciding who starts."""
        return QueueWalk(self, is_peek=True)

    def oldest(self, tier: int) -> Request | None:
        """Return the tier's request that arrived first, of those that are neither promoted nor held back."""
        found = self._tiers.get(tier)
        return None if found is None else found.oldest()

    def rebuild(
        self, ordering: OrderingPolicy, *, is_fair: bool, has_own_lane: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Bring everybody into another order. Arrival, counters and promotions stay."""
        requests = sorted((entry[4] for entry in self._alive.values()), key=lambda request: request.sequence)
        turns = {request_id: turn for request_id, (turn, _, _) in self._promoted.items()}
        self._alive.clear()
        self._promoted.clear()
        self._tiers.clear()
        self._tier_order.clear()
        self._held_back.clear()
        self._cohort_of.clear()
        self._sleeping.clear()
        self._set_order(ordering, is_fair, has_own_lane)
        for request in requests:
            self._place(request, turns.get(request.request_id, 0.0))

    # For the walk.

    def walk_tier(self, tier: int, *, is_peek: bool) -> TierWalk | LaneWalk:
        """Look at the requests of one tier, to decide about them or just to see."""
        lanes = self._tiers[tier].lanes
        if len(lanes) == 1 and self._rerank is None:
            return LaneWalk(*lanes.values())
        charge = self._expected_charge if self._is_fair else None
        return TierWalk(self._tiers[tier], charge, self._peek_rank if is_peek else self._rerank, self._window)

    def hold_back(self, lane: Lane) -> None:
        """Requests of this lane lack what only their own tenant can give back."""
        lane.is_held_back = True
        self._held_back.append(lane)

    def put_aside(self, lane: Lane, entry: Entry, prefix: Prefix) -> None:
        """This request, and those that share as much with it, wait for a prefix from now on."""
        cohort = lane.put_aside(entry, prefix.name, prefix.num_pages)
        if not cohort.is_asleep:
            tier = self._tiers[entry[4].priority]
            self._sleeping.put(prefix.computer_id, prefix.num_pages, tier, lane, cohort)

    def num_cohort_pages(self, request: Request) -> int:
        """Pages that a request has in common with all that were found to wait for the same prefix; 0 if with nobody."""
        cohort = self._cohort_of.get(request.request_id)
        return 0 if cohort is None else cohort.num_pages

    def find_lane(self, request: Request) -> Lane | None:
        """Return the lane that a promoted request came from, if others of its tenant wait there."""
        tier = self._tiers.get(request.priority)
        return None if tier is None else tier.lanes.get(self._lane_name(request))

    def _set_order(self, ordering: OrderingPolicy, is_fair: bool, has_own_lane: Callable[[str], bool]) -> None:
        self._ordering = ordering
        self._is_fair = is_fair
        self._has_own_lane = has_own_lane
        self._window = 1
        self._rerank: Callable[[Request], float] | None = None
        self._peek_rank: Callable[[Request], float] | None = None
        if isinstance(ordering, RerankingPolicy):
            count_cached, peek_cached, policy = self._count_cached, self._peek_cached, ordering
            self._window = policy.window
            self._rerank = lambda request: policy.rerank(request, count_cached(request))
            self._peek_rank = lambda request: policy.rerank(request, peek_cached(request))

    def _place(self, request: Request, turn: float = 0.0) -> None:
        # Who yielded to an equal takes its turn among those who never started; other preempted ones come before.
        is_fresh = int(request.phase is not Phase.PREEMPTED or request.has_yielded)
        self._num_pushed += 1
        rank = 0.0 if request.is_promoted else self._ordering.rank(request)
        entry = (is_fresh, rank, request.sequence, self._num_pushed, request)
        self._alive[request.request_id] = entry
        if request.is_promoted:
            self._promoted[request.request_id] = (turn, request.sequence, request)
            return
        tier = self._tiers.get(request.priority)
        if tier is None:
            tier = self._tiers[request.priority] = Tier(self._counter_of(request.priority))
            insort(self._tier_order, request.priority)
        name = self._lane_name(request)
        lane = tier.lanes.get(name)
        if lane is None:
            lane = tier.lanes[name] = Lane(name, self._alive, self._cohort_of)
        tier.push(lane, entry)

    def _leave_lane(self, request: Request) -> None:
        """The request's entry is not alive any more; it was not promoted."""
        tier = self._tiers[request.priority]
        tier.remove(tier.lanes[self._lane_name(request)], request.request_id)
        if tier.num_requests == 0:
            del self._tiers[request.priority]
            self._tier_order.remove(request.priority)

    def _lane_name(self, request: Request) -> str:
        return request.tenant if self._is_fair or self._has_own_lane(request.tenant) else _SHARED_LANE

    def _counter_of(self, tier: int) -> Callable[[str], float] | None:
        return (lambda tenant: self._counters.value(tier, tenant)) if self._is_fair else None

    def _expected_charge(self, request: Request) -> float:
        if request.phase is Phase.PREEMPTED:
            return 0.0
        return self._counters.cost_of_prompt(request.tenant, request.num_tokens)


class QueueWalk:
    """Looks at waiting requests in order until it is closed; nobody may be pushed or removed meanwhile."""

    def __init__(self, queue: WaitingQueue, *, is_peek: bool = False) -> None:
        self._queue = queue
        self._is_peek = is_peek
        self._promoted = iter(queue.promoted)
        self._last_promoted: Request | None = None
        self._tiers = iter(list(queue.tiers))
        self._tier: TierWalk | LaneWalk | None = None

    def __enter__(self) -> "QueueWalk":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_tier()

    def next(self) -> Request | None:
        """Return the next request, or ``None`` at the end."""
        for request in self._promoted:
            self._last_promoted = request
            return request
        self._last_promoted = None
        while True:
            if self._tier is None:
                tier = next(self._tiers, None)
                if tier is None:
                    return None
                self._tier = self._queue.walk_tier(tier, is_peek=self._is_peek)
            request = self._tier.next()
            if request is not None:
                return request
            self._close_tier()

    def hold_back(self) -> None:
        """The last request lacks what only its own tenant can give back: skip all that can be held back with it.

        They are not promoted meanwhile either. If it was promoted itself, one is enough to take the next chance.
        """
        if self._last_promoted is not None:
            lane = self._queue.find_lane(self._last_promoted)
        else:
            lane = None if self._tier is None else self._tier.hold_back_lane()
        if lane is not None:
            self._queue.hold_back(lane)

    def wait_for_prefix(self, prefix: Prefix) -> None:
        """The last request waits for what somebody computes: it is not looked at before :meth:`WaitingQueue.wake`.

        Those that have as many pages in common with it wait with it. It was not promoted.
        """
        gone = None if self._tier is None else self._tier.let_go()
        if gone is not None:
            self._queue.put_aside(*gone, prefix)

    def _close_tier(self) -> None:
        if self._tier is not None:
            self._tier.close()
            self._tier = None
