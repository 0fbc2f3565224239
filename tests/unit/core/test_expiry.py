"""Queue timeouts and deadlines: who ends, when, and that it costs no step."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from chairlift.core.events import Admitted, Finished, Scheduled
from chairlift.core.expiry import Expiry
from chairlift.core.request import FinishReason, Phase, Request
from chairlift.core.sampling_params import SamplingParams
from tests.harness import Rig, alone


def waiting(request_id: int, *, arrival: int = 0, ttft: int | None = None, total: int | None = None) -> Request:
    request = Request(request_id, [0] * 4, SamplingParams(), ttft_deadline_ns=ttft, deadline_ns=total)
    request.arrival_ns = arrival
    return request


def ids(due: list[tuple[Request, FinishReason]]) -> list[tuple[int, FinishReason]]:
    return [(request.request_id, reason) for request, reason in due]


def test_who_has_no_limit_is_not_watched():
    expiry = Expiry(None, lambda request: 0)
    expiry.add(waiting(0))
    assert expiry.next_ns is None
    assert expiry.take_due(10**18) == []


def test_a_request_may_wait_exactly_as_long_as_the_timeout():
    expiry = Expiry(1e-6, lambda request: 0)
    expiry.add(waiting(0, arrival=500))
    expiry.looked_at()
    assert expiry.next_ns == 1500
    assert expiry.take_due(1499) == []
    assert ids(expiry.take_due(1500)) == [(0, FinishReason.TIMEOUT)]
    assert expiry.next_ns is None


def test_nobody_times_out_before_a_plan_has_looked_at_it():
    expiry = Expiry(0.0, lambda request: 0)
    expiry.add(waiting(0))
    expiry.add(waiting(1, ttft=400))
    assert expiry.take_due(100) == []
    assert expiry.next_ns == 0
    assert ids(expiry.take_due(401)) == [(1, FinishReason.DEADLINE)]
    expiry.looked_at()
    assert ids(expiry.take_due(401)) == [(0, FinishReason.TIMEOUT)]


def test_a_timeout_that_is_set_before_the_plan_waits_for_it_too():
    expiry = Expiry(None, lambda request: 0)
    newcomer = waiting(0)
    expiry.add(newcomer)
    expiry.reconfigure(0.0, [newcomer])
    assert expiry.take_due(100) == []
    expiry.looked_at()
    assert ids(expiry.take_due(100)) == [(0, FinishReason.TIMEOUT)]


def test_who_can_start_at_once_does_so_after_a_step_longer_than_the_timeout():
    rig = Rig(max_num_seqs=2, max_num_batched_tokens=16, queue_timeout_s=0.0)
    first = rig.add(4, max_tokens=4)
    rig.step()
    second, third = rig.add(4, max_tokens=4), rig.add(4, max_tokens=4)
    rig.run()
    assert rig.finished == {first: FinishReason.LENGTH, second: FinishReason.LENGTH, third: FinishReason.TIMEOUT}


def test_a_deadline_that_the_prompt_alone_would_miss_has_passed_already():
    expiry = Expiry(None, lambda request: 300)
    expiry.add(waiting(0, ttft=1000))
    expiry.add(waiting(1, total=2000))
    assert expiry.take_due(700) == []
    assert ids(expiry.take_due(701)) == [(0, FinishReason.DEADLINE)]
    assert ids(expiry.take_due(1701)) == [(1, FinishReason.DEADLINE)]


def test_an_estimate_that_has_fallen_gives_the_request_more_time():
    needed = [300]
    expiry = Expiry(None, lambda request: needed[0])
    expiry.add(waiting(0, ttft=1000))
    needed[0] = 100
    assert expiry.take_due(800) == []
    assert expiry.next_ns == 901
    assert ids(expiry.take_due(901)) == [(0, FinishReason.DEADLINE)]


def test_who_started_is_let_finish_but_for_its_last_deadline():
    expiry = Expiry(1e-6, lambda request: 0)
    started = waiting(0, ttft=500, total=3000)
    expiry.add(started)
    started.phase = Phase.RUNNING
    assert expiry.take_due(2000) == []
    assert expiry.next_ns == 3001
    started.phase = Phase.PREEMPTED
    assert ids(expiry.take_due(3001)) == [(0, FinishReason.DEADLINE)]


def test_another_timeout_holds_for_those_who_wait():
    expiry = Expiry(None, lambda request: 0)
    request = waiting(0)
    expiry.add(request)
    expiry.reconfigure(1e-6, [request])
    assert expiry.next_ns == 1000
    expiry.reconfigure(None, [request])
    assert expiry.next_ns is None


def test_nobody_is_waited_for_who_has_gone():
    expiry = Expiry(None, lambda request: 0)
    first, second = waiting(0, total=10), waiting(1, total=20)
    expiry.add(first)
    expiry.add(second)
    expiry.remove(first)
    assert expiry.next_ns == 21


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=200))
def test_removed_requests_leave_nothing_behind(limits):
    expiry = Expiry(None, lambda request: 0)
    left = []
    for number, (deadline, stays) in enumerate(limits):
        request = waiting(number, total=deadline)
        expiry.add(request)
        if stays:
            left.append((deadline, number))
        else:
            expiry.remove(request)
    assert len(expiry._heap) <= 2 * max(len(left), 1) + 64 + 200
    assert [request.request_id for request, _ in expiry.take_due(1000)] == [number for _, number in sorted(left)]
    assert expiry._heap == []


def test_an_expired_request_costs_no_step_and_is_reported_once():
    rig = Rig(max_num_seqs=1, max_num_batched_tokens=16, queue_timeout_s=5e-9)
    running = rig.add(4, max_tokens=12)
    rig.step()
    late = rig.add(4, max_tokens=4)
    next_ns = rig.scheduler.next_expiry_ns
    assert next_ns is not None
    assert next_ns <= 6
    rig.run()
    assert rig.finished == {running: FinishReason.LENGTH, late: FinishReason.TIMEOUT}
    assert late not in {event.request_id for event in rig.log.of(Admitted)}
    assert [e.reason for e in rig.log.of(Finished)] == ["timeout", "length"]
    assert rig.scheduler.take_expired() == []


@pytest.mark.parametrize("depth", [1, 2])
def test_a_running_request_ends_at_its_deadline_and_its_pages_return(depth):
    rig = Rig(depth=depth)
    prompt = list(range(8))
    doomed = rig.add(prompt, max_tokens=100, deadline_ns=10)
    other = rig.add(8, max_tokens=30)
    rig.run()
    assert rig.finished[doomed] is FinishReason.DEADLINE
    assert rig.output[doomed] == alone(prompt, 100)[: len(rig.output[doomed])]
    assert 8 <= len(rig.output[doomed]) <= 11
    assert len(rig.output[other]) == 30


def test_time_runs_out_while_nothing_can_be_planned():
    rig = Rig(max_num_seqs=1)
    rig.add(4, max_tokens=30)
    rig.step()
    late = rig.add(4, max_tokens=4, ttft_deadline_ns=3)
    rig.scheduler.expire(4)
    [update] = rig.scheduler.take_expired()
    assert (update.request_id, update.finish_reason, update.token_ids) == (late, FinishReason.DEADLINE, ())
    assert rig.scheduler.num_waiting == 0


def test_the_first_deadline_is_served_first_and_who_has_none_comes_last():
    rig = Rig(max_num_seqs=1, scheduling_policy="deadline", guaranteed_share=0.0)
    rig.add(4, max_tokens=2)
    rig.step()
    never = rig.add(4, max_tokens=1)
    far = rig.add(4, max_tokens=1, deadline_ns=900)
    near = rig.add(4, max_tokens=1, deadline_ns=800, ttft_deadline_ns=850)
    first = rig.add(4, max_tokens=1, ttft_deadline_ns=700, deadline_ns=1000)
    rig.run()
    order = [event.chunks[0].request_id for event in rig.log.of(Scheduled) if event.chunks]
    assert order[1:] == [first, near, far, never]
