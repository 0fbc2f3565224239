"""Nobody starves: the bound that docs/scheduling/ordering.md states, under every order and across tiers."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from chairlift.core.events import Admitted, Preempted, Scheduled
from chairlift.core.guaranteed_share import MOST_IN_ALL
from chairlift.core.policies import ORDERING
from tests.harness import Rig

BUDGET = 24
MAX_OUTPUT = 12
NUM_TIERS = 3


class Watched:
    """What is known about a request that waits for its first slot."""

    def __init__(self, request, num_tokens: int) -> None:
        self.request = request
        self.arrived_at = num_tokens
        self.given_to_older = 0
        self.spent_on_older = 0
        self.largest_older = request.num_prompt_tokens
        self.promoted_at: int | None = None
        self.turn = 0.0
        self.num_steps_overdue = 0


class Watch:
    """Drives a rig and checks every request that starts, or still waits, against the bound."""

    def __init__(self, rig: Rig, share: float) -> None:
        self.rig, self.share = rig, share
        self.num_tokens = 0
        self.waiting: dict[int, Watched] = {}
        self.num_seen = 0
        self.num_promoted = 0
        queue = rig.scheduler.state.waiting
        promote = queue.promote

        def promoted(request, turn):
            self.num_promoted += 1
            for other in self.waiting.values():
                if other.request.priority == request.priority and other.request.sequence > request.sequence:
                    other.spent_on_older += request.num_tokens
            if request.request_id in self.waiting:
                watched = self.waiting[request.request_id]
                watched.promoted_at, watched.turn = -1, turn
            promote(request, turn)

        queue.promote = promoted

    def add(self, *args, **kwargs) -> None:
        request_id = self.rig.add(*args, **kwargs)
        request = self.rig.scheduler.requests[request_id]
        watched = Watched(request, self.num_tokens)
        for other in self.rig.scheduler.requests.values():
            if other.priority == request.priority:
                watched.largest_older = max(watched.largest_older, other.num_prompt_tokens + MAX_OUTPUT)
        self.waiting[request_id] = watched

    def step(self) -> bool:
        tiers = {request_id: r.priority for request_id, r in self.rig.scheduler.requests.items()}
        sequences = {request_id: r.sequence for request_id, r in self.rig.scheduler.requests.items()}
        outcome = self.rig.step()
        events, self.num_seen = self.rig.log.events[self.num_seen :], len(self.rig.log.events)
        for event in events:
            if isinstance(event, Admitted):
                self.waiting.pop(event.request_id, None)
            elif isinstance(event, Scheduled):
                given = [(request_id, 1) for request_id in event.decodes]
                given += [(chunk.request_id, chunk.length) for chunk in event.chunks]
                self.num_tokens += sum(length for _, length in given)
                for watched in self.waiting.values():
                    own = watched.request
                    watched.given_to_older += sum(
                        length
                        for request_id, length in given
                        if tiers[request_id] == own.priority and sequences[request_id] < own.sequence
                    )
        for request_id in [r for r in self.waiting if r in self.rig.finished]:
            del self.waiting[request_id]
        for watched in self.waiting.values():
            self.check(watched)
        return outcome is not None

    def check(self, watched: Watched) -> None:
        if watched.promoted_at == -1:
            watched.promoted_at = self.num_tokens
        if watched.promoted_at is None:
            earned = self.share * (self.num_tokens - watched.arrived_at)
            bound = watched.given_to_older + watched.spent_on_older + watched.largest_older + self.share * 2 * BUDGET
            assert earned <= bound, f"{watched.request!r} should have been promoted"
        elif self.num_tokens >= watched.turn:
            watched.num_steps_overdue += 1
            # Whoever was promoted before it may hold all slots until it ends, and so may who is left alone.
            limit = 4 + 2 * MAX_OUTPUT * (1 + self.rig.scheduler.config.max_num_seqs)
            assert watched.num_steps_overdue <= limit, f"{watched.request!r} is overdue"


@pytest.mark.parametrize("order", sorted(ORDERING))
@pytest.mark.parametrize("tenant_order", ["none", "fair"])
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.05, 0.15]),
    num_seqs=st.integers(1, 4),
    rate=st.floats(0.1, 1.2),
    admission=st.sampled_from(["reserve-prompt", "reserve-full", "optimistic"]),
)
def test_an_accepted_request_has_a_bound_on_the_tokens_served_before_it(
    order, tenant_order, seed, share, num_seqs, rate, admission
):
    rig = Rig(
        num_pages=40,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=BUDGET,
        scheduling_policy=order,
        tenant_order=tenant_order,
        admission=admission,
        guaranteed_share=share,
        quantum_tokens=3,
        max_equal_wait_ms=0,
    )
    random = Random(seed)
    watch = Watch(rig, min(share, MOST_IN_ALL / NUM_TIERS))
    # A victim of every kind of favour: long, in no hurry, of a tenant that had much already, with nothing cached.
    for tier in range(NUM_TIERS):
        watch.add(30, max_tokens=MAX_OUTPUT, priority=tier, tenant="much")
        watch.add(10, max_tokens=MAX_OUTPUT, priority=tier, tenant="much")
    for _ in range(80):
        while random.random() < rate:
            shared = [1, 2, 3, 4] * random.randint(1, 3)
            prompt = shared if random.random() < 0.5 else random.randint(1, 20)
            watch.add(
                prompt,
                max_tokens=random.randint(1, MAX_OUTPUT),
                priority=min(random.randrange(6), NUM_TIERS - 1) if random.random() < 0.3 else 0,
                tenant=random.choice("ab"),
                deadline_ns=rig.num_steps + 1000 if random.random() < 0.5 else None,
            )
            if len(watch.waiting) > 30:
                break
        watch.step()
    while watch.step():
        assert rig.num_steps < 5000
    assert not watch.waiting


@pytest.mark.parametrize("order", sorted(ORDERING))
def test_a_less_urgent_request_starts_though_urgent_ones_never_end(order):
    def starts_at(share: float) -> int | None:
        rig = Rig(max_num_seqs=2, max_num_batched_tokens=24, scheduling_policy=order, guaranteed_share=share)
        for _ in range(2):
            rig.add(8, max_tokens=10)
        rig.step()
        late = rig.add(20, max_tokens=4, priority=1)
        for _ in range(300):
            while rig.scheduler.num_waiting < 3:
                rig.add(8, max_tokens=10)
            rig.step()
            if late in rig.output:
                return rig.num_steps
        return None

    assert starts_at(0.0) is None
    found = starts_at(0.1)
    assert found is not None


def test_if_no_slot_becomes_free_somebody_gives_way_and_still_ends():
    rig = Rig(max_num_seqs=1, max_num_batched_tokens=20, guaranteed_share=0.5)
    endless = rig.add(4, max_tokens=200)
    rig.step()
    late = rig.add(30, max_tokens=5, priority=1)
    while late not in rig.finished:
        rig.step()
    # It earns half a token per step: promoted after 60, overdue after 60 more.
    assert 118 <= rig.num_steps <= 135
    [preempted] = rig.log.of(Preempted)
    assert preempted.request_id == endless
    rig.run()
    assert len(rig.output[endless]) == 200


def test_with_everybody_served_in_order_nobody_is_promoted():
    rig = Rig(num_pages=100, max_num_seqs=3, max_num_batched_tokens=24)
    watch = Watch(rig, 0.05)
    for _ in range(30):
        watch.add(12, max_tokens=10)
    while watch.step():
        pass
    assert watch.num_promoted == 0
