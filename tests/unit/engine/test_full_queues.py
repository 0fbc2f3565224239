"""What is said of full queues is what the gate does: never more, and where everybody is refused nothing less."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.config.resolved import TenantConfig
from chairlift.config.sections import QueueSettings
from chairlift.core.wait_prediction import Newcomer
from chairlift.engine.full_queues import FullQueueFinder
from chairlift.engine.queue_gate import QueueGate
from chairlift.errors import OverloadedError
from chairlift.observability.step_stats import FullQueue
from tests.clocked import ClockedRig
from tests.unit.engine.test_queue_gate import busy, rig

SHORT = Newcomer(3)


def find(made: ClockedRig, now_ns: int = 0, **caps: Any) -> tuple[FullQueue, ...]:
    return FullQueueFinder(QueueSettings(**caps)).find(made.scheduler, now_ns)


def refusal(made: ClockedRig, newcomer: Newcomer = SHORT, **caps: Any) -> OverloadedError:
    with pytest.raises(OverloadedError) as raised:
        QueueGate(QueueSettings(**caps)).check(made.scheduler, newcomer)
    return raised.value


def test_a_full_queue_is_described_as_the_gate_refuses() -> None:
    made = busy(3)
    (found,) = find(made, max_num_queued_reqs=3)
    error = refusal(made, max_num_queued_reqs=3)
    assert (found.message, found.retry_after_s) == (error.message, error.retry_after_s)
    assert (found.num_places, found.from_tier, found.tenant) == (0, 0, None)


def test_a_queue_that_fills_says_how_many_places_are_left() -> None:
    (found,) = find(busy(3), max_num_queued_reqs=5)
    assert found.num_places == 2
    assert found.message.startswith("5 requests wait, and --max-num-queued-reqs is 5")
    assert find(busy(2), max_num_queued_reqs=5) == ()
    assert find(busy(3)) == ()


def test_a_cap_of_zero_is_full_while_the_slots_are_taken_and_never_when_idle() -> None:
    assert find(rig(0), max_num_queued_reqs=0) == ()
    (found,) = find(busy(0), max_num_queued_reqs=0)
    assert found.num_places == 0


def test_a_free_slot_is_one_place_more() -> None:
    (found,) = find(rig(2), max_num_queued_reqs=2)
    assert found.num_places == 1


def test_tiers_that_displace_who_runs_have_a_place() -> None:
    made = busy(3)
    (found,) = find(made, max_num_queued_reqs=3)
    assert found.from_tier == 0
    QueueGate(QueueSettings(max_num_queued_reqs=3)).check(made.scheduler, Newcomer(3, tier=-1))


def test_a_tenants_cap_names_the_tenant() -> None:
    terms = {"batch": TenantConfig(max_num_queued_reqs=2)}
    made = rig(0, tenants=terms)
    for _ in range(4):
        made.add(3, 100, tenant="batch")
    made.step()
    (found,) = find(made)
    error = refusal(made, Newcomer(3, tenant="batch"))
    assert (found.tenant, found.num_places, found.message) == ("batch", 0, error.message)
    QueueGate(QueueSettings()).check(made.scheduler, Newcomer(3, tenant="other"))


def test_a_long_wait_is_told_once_nobody_would_be_in_time() -> None:
    made = busy(8)
    (found,) = find(made, max_ttft_ms=100.0)
    assert found.num_places == 0
    assert "--max-ttft-ms is 100 ms" in found.message
    assert found.retry_after_s == refusal(made, max_ttft_ms=100.0).retry_after_s
    assert find(made, max_ttft_ms=60_000.0) == ()


def test_a_wait_is_not_predicted_in_each_step() -> None:
    made = busy(8)
    finder = FullQueueFinder(QueueSettings(max_ttft_ms=100.0))
    (first,) = finder.find(made.scheduler, 0)
    assert finder.find(made.scheduler, 49_000_000)[0] is first
    assert finder.find(made.scheduler, 50_000_000)[0] is not first


def test_many_tiers_are_not_all_told_apart() -> None:
    made = busy(0)
    for tier in range(20):
        made.add(3, 10, priority=tier)
    (found,) = find(made, max_num_queued_reqs=1)
    assert found.from_tier == 12


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.sampled_from("ab"), st.integers(1, 40)), max_size=12),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from(["none", "fair"]),
    st.tuples(st.integers(-3, 3), st.sampled_from("abc"), st.integers(1, 60)),
    st.integers(0, 3),
)
def test_nobody_is_turned_away_whom_the_gate_lets_in(
    requests: list[tuple[int, str, int]],
    num_slots: int,
    cap: int,
    order: str,
    newcomer: tuple[int, str, int],
    num_steps: int,
) -> None:
    made = rig(
        0,
        max_num_seqs=num_slots,
        num_pages=24,
        tenant_order=order,
        tenants={"a": TenantConfig(max_num_queued_reqs=cap), "b": TenantConfig(weight=3.0)},
    )
    for tier, tenant, num_tokens in requests:
        made.add(num_tokens, 20, tenant=tenant, priority=tier)
    for _ in range(num_steps):
        if made.scheduler.has_unfinished:
            made.step()
    tier, tenant, num_tokens = newcomer
    caps = {"max_num_queued_reqs": cap}
    for found in find(made, **caps):
        if found.num_places == 0 and tier >= found.from_tier and found.tenant in (None, tenant):
            error = refusal(made, Newcomer(num_tokens, tier=tier, tenant=tenant), **caps)
            if found.tenant is None:
                assert (error.message, error.retry_after_s) == (found.message, found.retry_after_s)
            break
