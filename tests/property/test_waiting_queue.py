"""The waiting queue against a list that is sorted anew each time."""

from types import SimpleNamespace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chairlift.core.fairness import VirtualCounters
from chairlift.core.request import Phase, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.waiting_queue import Prefix, WaitingQueue

TENANTS = ["a", "b", "c"]


class ByLength:
    def rank(self, request):
        return float(request.num_tokens)


class ByArrival:
    def rank(self, request):
        return 0.0


class Reranked(ByArrival):
    window = 3

    def rerank(self, request, num_cached_tokens):
        return -float(num_cached_tokens)


ORDERS = {"length": ByLength(), "arrival": ByArrival(), "rerank": Reranked()}


class QueueMachine(RuleBasedStateMachine):
    """Requests are pushed, removed, promoted and charged; the order is compared with a slow and obvious one."""

    @initialize(order=st.sampled_from(sorted(ORDERS)), is_fair=st.booleans())
    def start(self, order, is_fair):
        self.counters = VirtualCounters(lambda tenant: 2.0 if tenant == "a" else 1.0)
        self.order, self.is_fair = order, is_fair
        self.queue = WaitingQueue(
            ORDERS[order],
            self.counters,
            is_fair=is_fair,
            has_own_lane=lambda tenant: tenant == "c",
            count_cached=lambda request: request.request_id * 7 % 5,
        )
        self.waiting: list[Request] = []
        self.turns: dict[int, float] = {}
        self.held_back: set[str] = set()
        self.members: dict[int, tuple[int, str, int]] = {}
        self.asleep: set[tuple[int, str, int]] = set()
        self.num_requests = 0

    @rule(
        length=st.integers(1, 6),
        tier=st.integers(0, 2),
        tenant=st.sampled_from(TENANTS),
        is_preempted=st.booleans(),
        sequence_back=st.integers(0, 5),
    )
    def push(self, length, tier, tenant, is_preempted, sequence_back):
        request = Request(self.num_requests, [0] * length, SamplingParams(), priority=tier, tenant=tenant)
        request.sequence = self.num_requests * 10 - (sequence_back * 7 if is_preempted else 0)
        request.phase = Phase.PREEMPTED if is_preempted else Phase.WAITING
        self.num_requests += 1
        self.queue.push(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 1000))
    def remove(self, index):
        request = self.waiting.pop(index % len(self.waiting))
        self.turns.pop(request.request_id, None)
        self.leave_cohort(request)
        self.queue.remove(request)

    @precondition(lambda self: len(self.waiting) > 40)
    @rule()
    def remove_most(self):
        while len(self.waiting) > 2:
            self.remove(len(self.waiting) // 2)

    @rule(length=st.integers(20, 60), tenant=st.sampled_from(TENANTS))
    def push_many(self, length, tenant):
        for number in range(length):
            self.push(1 + number % 5, number % 2, tenant, False, 0)

    @precondition(lambda self: any(r.request_id not in self.turns for r in self.waiting))
    @rule(index=st.integers(0, 1000), turn=st.floats(0, 10))
    def promote(self, index, turn):
        candidates = [r for r in self.waiting if r.request_id not in self.turns]
        request = candidates[index % len(candidates)]
        self.leave_cohort(request)
        self.queue.promote(request, turn)
        self.turns[request.request_id] = turn

    @rule(tier=st.integers(0, 2), tenant=st.sampled_from(TENANTS), num_tokens=st.integers(1, 9))
    def charge(self, tier, tenant, num_tokens):
        self.counters.charge(tier, tenant, num_tokens)

    @rule(order=st.sampled_from(sorted(ORDERS)), is_fair=st.booleans())
    def rebuild(self, order, is_fair):
        self.order, self.is_fair = order, is_fair
        self.held_back = set()
        self.members.clear()
        self.asleep.clear()
        self.queue.rebuild(ORDERS[order], is_fair=is_fair, has_own_lane=lambda tenant: tenant == "c")

    def cohort(self, request) -> tuple[int, str, int]:
        """Every third one begins alike."""
        is_alone = self.is_fair or request.tenant == "c"
        return (request.priority, request.tenant if is_alone else "", request.request_id % 3)

    def leave_cohort(self, request) -> None:
        cohort = self.members.pop(request.request_id, None)
        if cohort is not None and cohort not in self.members.values():
            self.asleep.discard(cohort)

    def is_asleep(self, request) -> bool:
        return self.members.get(request.request_id) in self.asleep

    @rule(group=st.integers(0, 2), num_looks=st.integers(1, 30), is_peek=st.booleans())
    def wait_for_prefix(self, group, num_looks, is_peek):
        """Whoever is looked at and begins so, stands aside, and those that stood aside with it before do too."""
        if self.order == "rerank":
            num_looks = 10**9  # who is in a window depends on who was looked at before
        with self.queue.peek() if is_peek else self.queue.walk() as walk:
            self.held_back = self.held_back if is_peek else set()
            while num_looks and (request := walk.next()) is not None:
                num_looks -= 1
                if request.request_id % 3 == group and request.request_id not in self.turns:
                    walk.wait_for_prefix(Prefix(group, 1, group))
                    self.members[request.request_id] = self.cohort(request)
                    self.asleep.add(self.cohort(request))

    @rule(group=st.integers(0, 2), num_useless=st.sampled_from([None, 0, 1]))
    def wake(self, group, num_useless):
        """One page in common is enough to go on waiting if none is useless."""
        self.queue.wake(lambda computer_id: num_useless if computer_id == group else 0)
        if num_useless != 0:
            self.asleep = {cohort for cohort in self.asleep if cohort[2] != group}

    @rule()
    def hold_back_c(self):
        """Whoever comes from tenant c is skipped, and so are the others of its lane."""
        seen = []
        with self.queue.walk() as walk:
            while (request := walk.next()) is not None:
                seen.append(request)
                if request.tenant == "c" and request.request_id not in self.turns:
                    walk.hold_back()
        expected, skipped = [], set()
        for request in self.in_order(held_back_from_first="c", with_sleepers=False):
            if request.request_id in self.turns or (request.priority, request.tenant) not in skipped:
                expected.append(request)
                if request.tenant == "c" and request.request_id not in self.turns:
                    skipped.add((request.priority, "c"))
        assert [r.request_id for r in seen] == [r.request_id for r in expected]
        self.held_back = {"c"} if skipped else set()

    def in_order(self, held_back_from_first=None, *, with_sleepers=True) -> list[Request]:
        promoted = sorted(
            (r for r in self.waiting if r.request_id in self.turns),
            key=lambda r: (self.turns[r.request_id], r.sequence),
        )
        rest = [r for r in self.waiting if r.request_id not in self.turns]
        rest = [r for r in rest if with_sleepers or not self.is_asleep(r)]
        found = list(promoted)
        for tier in sorted({r.priority for r in rest}):
            found.extend(self._in_tier(tier, [r for r in rest if r.priority == tier], held_back_from_first))
        return found

    def _in_tier(self, tier, requests, held_back_from_first) -> list[Request]:
        policy = ORDERS[self.order]
        pushed = {r.request_id: number for number, r in enumerate(self.waiting)}

        def entry(request):
            fresh = request.phase is not Phase.PREEMPTED
            return (fresh, policy.rank(request), request.sequence, pushed[request.request_id])

        lanes: dict[str, SimpleNamespace] = {}
        for request in sorted(requests, key=entry):
            name = request.tenant if self.is_fair or request.tenant == "c" else ""
            lane = lanes.setdefault(name, SimpleNamespace(rest=[], buffer=[], charged=0.0, name=name))
            lane.rest.append(request)
        found = []
        while any(lane.rest or lane.buffer for lane in lanes.values()):
            open_lanes = [lane for lane in lanes.values() if lane.rest or lane.buffer]

            def key(lane):
                counter = self.counters.value(tier, lane.name) + lane.charged if self.is_fair else 0.0
                return (counter, min(map(entry, lane.buffer)) if lane.buffer else entry(lane.rest[0]))

            lane = min(open_lanes, key=key)
            if not lane.buffer:
                window = getattr(policy, "window", 1)
                lane.buffer, lane.rest = lane.rest[:window], lane.rest[window:]
                if window > 1:
                    lane.buffer.sort(key=lambda r: (entry(r)[0], -(r.request_id * 7 % 5), entry(r)[1:]))
            request = lane.buffer.pop(0)
            found.append(request)
            if self.is_fair and request.phase is not Phase.PREEMPTED:
                lane.charged += self.counters.cost_of_prompt(request.tenant, request.num_tokens)
            if held_back_from_first == lane.name:
                lane.rest, lane.buffer = [], []
        return found

    @invariant()
    def order_is_that_of_the_model(self):
        if not hasattr(self, "queue"):
            return
        expected = [request.request_id for request in self.in_order()]
        assert [request.request_id for request in self.queue] == expected
        assert [request.request_id for request in self.queue.list_first(3)] == expected[:3]
        awake = [request.request_id for request in self.in_order(with_sleepers=False)]
        assert [request.request_id for request in self.queue.first(3)] == awake[:3]
        assert [request.request_id for request in self.queue.first(len(expected))] == awake
        assert self.queue.num_waiting_for_prefix == len(expected) - len(awake)
        assert {r.request_id for r in self.waiting if self.queue.waits_for_prefix(r)} == set(expected) - set(awake)
        assert len(self.queue) == len(expected)
        assert self.queue.num_tokens == sum(request.num_tokens for request in self.waiting)

    @invariant()
    def oldest_is_that_of_the_model(self):
        if not hasattr(self, "queue"):
            return
        rest = [r for r in self.waiting if r.request_id not in self.turns]
        assert list(self.queue.tiers) == sorted({r.priority for r in rest})
        for tier in self.queue.tiers:
            tenants_held = {"c"} if any(lane.tenant == "c" for lane in self.queue._held_back) else set()
            open_ones = [r for r in rest if r.priority == tier and r.tenant not in tenants_held]
            oldest = self.queue.oldest(tier)
            if open_ones and not tenants_held:
                assert oldest is not None
                assert oldest.sequence == min(r.sequence for r in open_ones)
            elif open_ones:
                # Lanes made since are not held back.
                assert oldest is not None
                assert oldest.sequence <= min(r.sequence for r in open_ones)


QueueMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestWaitingQueue = QueueMachine.TestCase
