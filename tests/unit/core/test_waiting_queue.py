"""The waiting queue's memory and its promises on cost; its order is tested in tests/property."""

import pytest

from chairlift.core.fairness import VirtualCounters
from chairlift.core.policies.ordering import Fcfs
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.waiting_queue import WaitingQueue

SAMPLING = SamplingParams()


def make_queue(*, is_fair: bool) -> WaitingQueue:
    return WaitingQueue(Fcfs(), VirtualCounters(lambda tenant: 1.0), is_fair=is_fair)


def make_request(number: int, tenant: str = "", priority: int = 0) -> Request:
    request = Request(number, [0, 1], SAMPLING, tenant=tenant, priority=priority)
    request.sequence = number
    return request


@pytest.mark.parametrize("is_fair", [False, True])
def test_those_who_left_take_up_no_memory(is_fair):
    queue = make_queue(is_fair=is_fair)
    stays = make_request(-1, "stays")
    queue.push(stays)
    for number in range(3000):
        request = make_request(number, f"t{number % 300}")
        queue.push(request)
        queue.first(2)
        queue.oldest(0)
        queue.remove(request)
    assert list(queue) == [stays]
    tier = queue._tiers[0]
    assert len(tier.lanes) == 1
    assert len(tier._in_order) + len(tier._by_arrival) < 200
    assert len(next(iter(tier.lanes.values())).entries) < 100
    assert len(queue._counters) <= VirtualCounters.MAX_IDLE
    queue.remove(stays)
    assert not queue._tiers
    assert list(queue.tiers) == []


def test_tenants_who_come_and_go_while_another_is_never_looked_past_take_up_no_memory():
    queue = make_queue(is_fair=True)
    queue.push(make_request(-1, "first"))
    queue._counters.charge(0, "second", 10)
    for number in range(2000):
        request = make_request(number, "second")
        queue.push(request)
        queue.remove(request)
    tier = queue._tiers[0]
    assert len(tier._in_order) < 100
    assert len(tier._by_arrival) < 100


def test_looking_at_the_first_touches_only_those():
    queue = make_queue(is_fair=False)
    for number in range(5000):
        queue.push(make_request(number))
    [lane] = queue._tiers[0].lanes.values()
    looked_at = []
    is_alive = lane.is_alive

    class Counting(type(lane)):
        __slots__ = ()

        def is_alive(self, entry):
            looked_at.append(entry)
            return is_alive(entry)

    lane.__class__ = Counting
    assert [request.request_id for request in queue.first(16)] == list(range(16))
    assert len(looked_at) < 100


def test_many_aborts_at_the_head_are_paid_for_once():
    queue = make_queue(is_fair=False)
    requests = [make_request(number) for number in range(4000)]
    for request in requests:
        queue.push(request)
    for request in requests[:1990]:
        queue.remove(request)
    assert [request.request_id for request in queue.first(1)] == [1990]
    [lane] = queue._tiers[0].lanes.values()
    assert len(lane.entries) == 4000 - 1990


def queue_of_tenants_most_of_whom_left() -> WaitingQueue:
    """Tenants 0 to 49 wait; 150 others are gone, and what the heaps still know of them goes with the next listing."""
    queue = make_queue(is_fair=True)
    requests = [make_request(number, f"t{number}") for number in range(200)]
    for request in requests:
        queue.push(request)
    queue.push(make_request(200, "t1"))
    for request in (requests[1], *requests[50:]):
        queue.remove(request)
    return queue


def test_tidying_up_while_tenants_are_listed_anew_loses_nobody():
    queue = queue_of_tenants_most_of_whom_left()
    for number in (0, 2, 3):
        queue._counters.charge(0, f"t{number}", 10 * (number + 1))
    assert [request.request_id for request in queue.first(100)] == [*range(4, 50), 200, 0, 2, 3]


def test_tidying_up_while_the_oldest_is_looked_for_loses_nobody():
    queue = queue_of_tenants_most_of_whom_left()
    with queue.walk() as walk:
        first = walk.next()
        walk.hold_back()
    assert first is not None
    assert first.request_id == 0
    next_oldest = queue.oldest(0)
    assert next_oldest is not None
    assert next_oldest.request_id == 2
    with queue.walk():
        assert queue.oldest(0) is first
