"""Settings change while requests wait and run."""

import pytest

from chairlift.config.resolved import TenantConfig
from chairlift.core.events import Admitted, Reconfigured
from chairlift.errors import ConfigurationError
from tests.harness import Rig


def admitted(rig: Rig) -> list[int]:
    return [event.request_id for event in rig.log.of(Admitted)]


def test_those_who_wait_are_brought_into_the_new_order_and_back():
    rig = Rig(max_num_seqs=1, guaranteed_share=0.0)
    rig.add(4, max_tokens=3)
    rig.step()
    long, short = rig.add(20, max_tokens=2), rig.add(4, max_tokens=2)
    assert [r.request_id for r in rig.scheduler.state.waiting] == [long, short]
    rig.scheduler.reconfigure({"scheduling_policy": "shortest"}, 7)
    assert [r.request_id for r in rig.scheduler.state.waiting] == [short, long]
    rig.scheduler.reconfigure({"scheduling_policy": "fcfs"}, 8)
    rig.run()
    assert admitted(rig)[1:] == [long, short]
    assert rig.log.of(Reconfigured) == [
        Reconfigured(7, {"scheduling_policy": "shortest"}),
        Reconfigured(8, {"scheduling_policy": "fcfs"}),
    ]


def test_counters_survive_a_change_of_the_tenant_order():
    rig = Rig(num_pages=200, max_num_seqs=2, max_num_batched_tokens=32)
    for _ in range(20):
        rig.add(12, max_tokens=4, tenant="early")
    for _ in range(10):
        rig.step()
    counters = rig.scheduler.state.ledger.counters
    before = counters.value(0, "early")
    assert before > 0
    rig.scheduler.reconfigure({"tenant_order": "fair"}, 0)
    assert counters.value(0, "early") == before
    rig.add(12, max_tokens=4, tenant="late")
    assert counters.value(0, "late") == before, "what was served before it came is not held against the others"
    rig.run()


def test_fewer_slots_displace_nobody_and_more_come_back_up_to_those_built():
    rig = Rig(max_num_seqs=3, max_num_batched_tokens=16)
    for _ in range(6):
        rig.add(4, max_tokens=8)
    rig.step()
    assert rig.scheduler.num_running == 3
    rig.scheduler.reconfigure({"max_num_seqs": 1}, 0)
    seen = set()
    while rig.scheduler.num_running != 1:
        rig.step()
        seen.add(rig.scheduler.num_running)
    rig.scheduler.reconfigure({"max_num_seqs": 3}, 0)
    rig.step()
    rig.step()
    assert rig.scheduler.num_running == 3
    rig.run()
    assert rig.scheduler.stats().preemptions_total == 0


def test_a_lower_budget_holds_from_the_next_step_on():
    rig = Rig(max_num_batched_tokens=64, max_num_seqs=4)
    rig.add(200, max_tokens=2)
    rig.step()
    rig.scheduler.reconfigure({"max_num_batched_tokens": 20}, 0)
    plan = rig.scheduler.plan(1)
    assert plan is not None
    assert plan.num_tokens == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduling_policy": "random"}, "--scheduling-policy 'random' is unknown"),
        ({"tenant_order": "unfair"}, "--tenant-order"),
        ({"admission": "all"}, "--admission"),
        ({"preemption_policy": "none"}, "--preemption-policy"),
        ({"preemption_mode": "none"}, "--preemption-mode"),
        ({"preemption_mode": "swap"}, "--preemption-mode swap needs --swap-space"),
        ({"max_num_seqs": 9}, "--max-num-seqs can be raised to 4"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1"),
        ({"max_num_batched_tokens": 5}, "--max-num-batched-tokens"),
        ({"max_num_batched_tokens": 500}, "--max-num-batched-tokens can be raised to 16"),
        ({"max_model_len": 10}, "max_model_len cannot be changed"),
        ({"batching": "static"}, "batching cannot be changed"),
        ({"watermak": 0.1}, "did you mean 'watermark'"),
        ({"guaranteed_share": 0.2, "max_num_seqs": 99}, "--max-num-seqs"),
    ],
)
def test_a_change_that_cannot_work_changes_nothing(changes, message):
    rig = Rig()
    before = rig.scheduler.config
    with pytest.raises(ConfigurationError, match=message):
        rig.scheduler.reconfigure(changes, 0)
    assert rig.scheduler.config is before
    assert rig.scheduler.state.config is before
    assert rig.log.of(Reconfigured) == []
    assert rig.scheduler.state.ledger.share.share == before.guaranteed_share


def test_a_quota_that_is_lowered_below_what_somebody_needs_stops_nobody_for_ever():
    rig = Rig(num_pages=40, max_num_seqs=4, tenants={"t": TenantConfig(max_kv_pages=20)})
    waiting = [rig.add(40, max_tokens=8, tenant="t") for _ in range(3)]
    rig.scheduler.reconfigure({"tenants": {"t": TenantConfig(max_kv_pages=2)}}, 0)
    rig.run()
    assert set(rig.finished) == set(waiting)
