"""Caps are exact, never in the way of what would start at once, and honest about when to come back."""

import pytest

from chairlift.config.resolved import TenantConfig
from chairlift.config.sections import QueueSettings
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.wait_prediction import Newcomer
from chairlift.engine.queue_gate import QueueGate, ms_until_deadline
from chairlift.errors import OverloadedError
from tests.clocked import MS, ClockedRig, step_time

SHORT = Newcomer(3)


def rig(num_waiting: int, num_prompt_tokens: int = 3, *, tenant: str = "", **settings: object) -> ClockedRig:
    """One slot, and so many that wait for it; nothing has run."""
    made = ClockedRig(
        step_time(10, 0.1), **{"max_num_seqs": 1, "max_num_batched_tokens": 64, "num_pages": 512, **settings}
    )
    for _ in range(num_waiting):
        made.add(num_prompt_tokens, 100, tenant=tenant)
    return made


def busy(num_waiting: int, *, num_served: int = 6, max_tokens: int = 50) -> ClockedRig:
    """One slot that served some requests, half a second each, and is taken now."""
    made = rig(0)
    for _ in range(num_served):
        made.add(3, max_tokens)
    made.run()
    for _ in range(num_waiting + 1):
        made.add(3, max_tokens)
    made.step()
    assert (made.scheduler.num_running, made.scheduler.num_waiting) == (1, num_waiting)
    return made


def test_as_many_wait_as_the_cap_says_beside_the_free_slot() -> None:
    gate = QueueGate(QueueSettings(max_num_queued_reqs=2))
    gate.check(rig(2).scheduler, SHORT)
    with pytest.raises(OverloadedError, match=r"3 requests wait, and --max-num-queued-reqs is 2"):
        gate.check(rig(3).scheduler, SHORT)


def test_with_the_slot_taken_only_the_cap_counts() -> None:
    QueueGate(QueueSettings(max_num_queued_reqs=3)).check(busy(2).scheduler, SHORT)
    with pytest.raises(OverloadedError):
        QueueGate(QueueSettings(max_num_queued_reqs=2)).check(busy(2).scheduler, SHORT)


def test_waiting_tokens_are_capped_but_never_for_a_free_slot() -> None:
    gate = QueueGate(QueueSettings(max_num_queued_tokens=10))
    gate.check(rig(0).scheduler, Newcomer(1000))
    gate.check(rig(2).scheduler, Newcomer(4))
    with pytest.raises(
        OverloadedError, match=r"6 tokens wait, this request brings 5, and --max-num-queued-tokens is 10"
    ):
        gate.check(rig(2).scheduler, Newcomer(5))
    with pytest.raises(OverloadedError, match="this request brings 6"):
        gate.check(rig(2).scheduler, Newcomer(3, num_choices=2))


def test_zero_allows_no_waiting_at_all() -> None:
    gate = QueueGate(QueueSettings(max_num_queued_reqs=0, max_ttft_ms=0.0))
    gate.check(rig(0).scheduler, SHORT)
    with pytest.raises(OverloadedError):
        gate.check(rig(1).scheduler, SHORT)


def test_a_free_slot_without_pages_is_no_place_to_start() -> None:
    """Two slots are free, but the pool is full: the cap holds, and not two requests more."""
    full = rig(0, max_num_seqs=3, num_pages=16, max_num_batched_tokens=320)
    full.add(250, 4)
    full.step()
    assert full.scheduler.stats().num_free_pages == 0
    with pytest.raises(OverloadedError, match="0 requests wait, and --max-num-queued-reqs is 0"):
        QueueGate(QueueSettings(max_num_queued_reqs=0)).check(full.scheduler, SHORT)


def test_who_runs_beyond_a_lowered_number_of_slots_does_not_count_against_the_queue() -> None:
    made = rig(4, max_num_seqs=4)
    made.step()
    made.scheduler.reconfigure({"max_num_seqs": 1}, 0)
    assert (made.scheduler.num_running, made.scheduler.num_waiting) == (4, 0)
    gate = QueueGate(QueueSettings(max_num_queued_reqs=1))
    gate.check(made.scheduler, SHORT)
    made.add(3, 100)
    with pytest.raises(OverloadedError, match="1 request waits, and --max-num-queued-reqs is 1"):
        gate.check(made.scheduler, SHORT)


def test_without_caps_nothing_is_refused() -> None:
    QueueGate(QueueSettings()).check(rig(100).scheduler, Newcomer(10**9))


def test_tenants_have_caps_of_their_own() -> None:
    tenants = {"a": TenantConfig(max_num_queued_reqs=2), "b": TenantConfig(max_num_queued_tokens=10)}
    gate = QueueGate(QueueSettings())
    full = rig(2, tenant="a", tenants=tenants)
    with pytest.raises(OverloadedError, match="2 requests of this tenant wait, and its max_num_queued_reqs is 2"):
        gate.check(full.scheduler, Newcomer(3, tenant="a"))
    gate.check(full.scheduler, Newcomer(3, tenant="b"))
    with pytest.raises(OverloadedError, match="this request brings 11, and its max_num_queued_tokens is 10"):
        gate.check(full.scheduler, Newcomer(11, tenant="b"))
    gate.check(full.scheduler, Newcomer(10**6))
    # The cap is on waiting: with a free slot the tenant is served.
    gate.check(rig(0, tenants={"a": TenantConfig(max_num_queued_reqs=0)}).scheduler, Newcomer(3, tenant="a"))


def test_whoever_would_displace_the_less_urgent_is_not_refused() -> None:
    made = rig(0)
    made.add(3, 100, priority=1)
    made.step()
    gate = QueueGate(QueueSettings(max_num_queued_reqs=0))
    gate.check(made.scheduler, Newcomer(3, tier=0))
    with pytest.raises(OverloadedError):
        gate.check(made.scheduler, Newcomer(3, tier=1))


def test_a_wait_beyond_the_limit_is_refused_with_the_time_until_it_is_within() -> None:
    """Each request takes the slot for half a second, so with 20 before it the newcomer would wait about 10 s."""
    made = busy(20)
    prediction = QueueGate(QueueSettings(max_ttft_ms=12_000)).check(made.scheduler, SHORT)
    assert prediction is not None
    assert 8e9 < prediction.ttft_ns < 12e9
    with pytest.raises(
        OverloadedError, match=r"with 20 requests before this one, and --max-ttft-ms is 4.0 s"
    ) as caught:
        QueueGate(QueueSettings(max_ttft_ms=4_000)).check(made.scheduler, SHORT)
    assert 4 <= caught.value.retry_after_s <= 8
    with pytest.raises(OverloadedError, match=r"its deadline .* leaves 2.0 s"):
        QueueGate(QueueSettings()).check(made.scheduler, SHORT, deadline_ms=2_000)
    QueueGate(QueueSettings()).check(made.scheduler, SHORT, deadline_ms=12_000)


def test_what_starts_at_once_is_not_refused_even_if_it_cannot_be_in_time() -> None:
    made = busy(0)
    made.run()
    QueueGate(QueueSettings(max_ttft_ms=0.0)).check(made.scheduler, Newcomer(1000), deadline_ms=0.1)


def test_nothing_is_refused_on_a_prediction_that_nobody_can_make_yet() -> None:
    assert QueueGate(QueueSettings(max_ttft_ms=0.001)).check(rig(50).scheduler, SHORT) is None


@pytest.mark.parametrize(("max_tokens", "retry_after_s"), [(5, 1), (700, 7), (7000, 60)])
def test_retry_after_is_the_time_until_there_is_room(max_tokens: int, retry_after_s: int) -> None:
    made = busy(1, max_tokens=max_tokens)
    with pytest.raises(OverloadedError) as caught:
        QueueGate(QueueSettings(max_num_queued_reqs=1)).check(made.scheduler, SHORT)
    assert caught.value.retry_after_s == pytest.approx(retry_after_s, abs=1)
    assert caught.value.retry_after_s <= 60


def test_the_earlier_deadline_counts() -> None:
    def request(ttft_ns: int | None, whole_ns: int | None) -> Request:
        return Request(0, [1], SamplingParams(), ttft_deadline_ns=ttft_ns, deadline_ns=whole_ns)

    assert ms_until_deadline(request(None, None), 0) is None
    assert ms_until_deadline(request(5 * MS, None), 2 * MS) == 3
    assert ms_until_deadline(request(5 * MS, 4 * MS), 2 * MS) == 2
    assert ms_until_deadline(request(None, 2 * MS), 2 * MS) is None  # over: no refusal, but an end
