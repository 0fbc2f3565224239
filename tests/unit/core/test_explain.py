"""Every reason to wait, in words and numbers, and that asking changes nothing."""

import pytest

from chairlift.config.resolved import TenantConfig
from chairlift.core.explain import _WORDS, MAX_POSITION, RequestExplanation, count_waiting_by_reason, explain
from chairlift.core.request import BlockedOn, Phase, Request
from tests.clocked import MS, ClockedRig, step_time


def rig(**settings: object) -> ClockedRig:
    return ClockedRig(step_time(10, 0.1), **{"max_num_seqs": 2, "max_num_batched_tokens": 64, **settings})


def ask(made: ClockedRig, request: Request) -> RequestExplanation:
    found = explain(made.scheduler, request.request_id, made.now_ns)
    assert found is not None
    return found


def test_a_request_that_is_not_alive_has_no_explanation() -> None:
    made = rig()
    request = made.add(4, 1)
    made.run()
    assert explain(made.scheduler, request.request_id, 0) is None
    assert explain(made.scheduler, 99, 0) is None


def test_running_requests_say_how_far_they_are() -> None:
    made = rig()
    request = made.add(100, 8)
    made.step()
    found = ask(made, request)
    assert (found.phase, found.blocked_on, found.position) == (Phase.RUNNING, None, None)
    assert found.reason == "runs: 64 of 100 tokens are computed before its next one"
    assert found.num_kv_pages == 7
    made.step()
    made.step()
    assert ask(made, request).reason == "runs: has 2 of at most 8 output tokens"


def test_a_newcomer_is_looked_at_by_the_next_step() -> None:
    made = rig()
    found = ask(made, made.add(4, 1))
    assert (found.phase, found.blocked_on, found.position) == (Phase.WAITING, None, 0)
    assert found.reason == "has just come: the next step looks at it"


def test_without_a_slot() -> None:
    made = rig()
    last = [made.add(10, 50) for _ in range(5)][-1]
    made.step()
    found = ask(made, last)
    assert found.blocked_on is BlockedOn.SLOTS
    assert found.reason == "waits for a slot: all 2 are taken and 3 requests wait; raise --max-num-seqs"
    assert (found.position, found.num_tokens_ahead) == (2, 20)
    assert found.waited_ns == made.now_ns
    assert count_waiting_by_reason(made.scheduler) == {BlockedOn.SLOTS: 3}


def test_without_the_only_slot() -> None:
    made = rig(max_num_seqs=1)
    last = [made.add(10, 50) for _ in range(2)][-1]
    made.step()
    assert ask(made, last).reason == "waits for a slot: the only one is taken and 1 request waits; raise --max-num-seqs"


def test_without_pages() -> None:
    made = rig(num_pages=10, max_num_seqs=8, max_num_batched_tokens=256, max_lookahead=0)
    made.add(110, 40)
    waiting = made.add(60, 40)
    behind = made.add(16, 40)
    made.step()
    assert made.scheduler.stats().num_free_pages == 3
    found = ask(made, waiting)
    assert found.blocked_on is BlockedOn.PAGES
    assert found.reason == ("waits for 4 KV pages; 3 are available; raise --kv-cache-memory or lower --max-num-seqs")
    assert ask(made, behind).blocked_on is BlockedOn.RESERVED
    assert "was passed 0 times for want of KV pages" in ask(made, behind).reason
    assert count_waiting_by_reason(made.scheduler) == {BlockedOn.PAGES: 1, BlockedOn.RESERVED: 1}


def test_without_budget() -> None:
    made = rig(max_num_seqs=8, max_num_batched_tokens=64, target_tpot_ms=200)
    made.add(4, 50)
    made.step()
    last = [made.add(1000, 4) for _ in range(4)][-1]
    made.step()
    found = ask(made, last)
    assert found.blocked_on is BlockedOn.BUDGET
    assert "1 go to decodes" in found.reason
    assert found.reason.endswith("raise --max-num-batched-tokens or --target-tpot-ms (200)")


def test_beyond_the_tenants_quota() -> None:
    made = rig(max_num_seqs=8, max_num_batched_tokens=256, tenants={"a": TenantConfig(max_kv_pages=8)})
    made.add(100, 50, tenant="a")
    waiting = made.add(64, 50, tenant="a")
    made.add(64, 50, tenant="b")
    made.step()
    found = ask(made, waiting)
    assert found.blocked_on is BlockedOn.QUOTA
    assert found.reason == (
        "waits for 4 KV pages of its tenant's: its running requests hold 7 of 8; raise max_kv_pages in --tenants"
    )
    assert count_waiting_by_reason(made.scheduler) == {BlockedOn.QUOTA: 1}


def test_static_groups() -> None:
    made = rig(batching="static")
    last = [made.add(10, 50) for _ in range(3)][-1]
    made.step()
    assert ask(made, last).reason == "waits until all 2 members of the running group have ended (--batching static)"
    assert count_waiting_by_reason(made.scheduler) == {BlockedOn.GROUP: 1}


def test_a_preempted_request_says_so() -> None:
    made = rig(num_pages=6, max_num_seqs=2, max_num_batched_tokens=64)
    first, second = made.add(30, 60), made.add(30, 60)
    for _ in range(60):
        made.step()
        if second.phase is Phase.PREEMPTED:
            break
    assert first.phase is Phase.RUNNING
    found = ask(made, second)
    assert found.blocked_on is BlockedOn.PAGES
    assert found.reason.endswith("(preempted once, 0 tokens kept)")
    assert found.num_preemptions == 1


def test_the_wait_is_predicted_once_something_is_known() -> None:
    made = rig()
    last = [made.add(10, 20) for _ in range(20)][-1]
    assert ask(made, last).predicted_wait_ns is None
    made.run(until_ns=1000 * MS)
    found = ask(made, last)
    asked_ns = made.now_ns
    made.run()
    assert found.predicted_wait_ns == pytest.approx(made.first_token_ns[last.request_id] - asked_ns, rel=0.5)


def test_a_long_queue_is_counted_and_not_walked() -> None:
    made = rig()
    last = [made.add(10, 50) for _ in range(MAX_POSITION + 500)][-1]
    made.step()
    assert ask(made, last).position is None
    assert ask(made, last).blocked_on is BlockedOn.SLOTS
    assert count_waiting_by_reason(made.scheduler) == {BlockedOn.SLOTS: MAX_POSITION + 498}


def test_every_reason_has_words() -> None:
    assert set(_WORDS) == set(BlockedOn)
