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
    lane = queue._tiers[0].lanes[""]
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
    assert len(queue._tiers[0].lanes[""].entries) == 4000 - 1990
