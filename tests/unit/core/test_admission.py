"""What must fit before a request starts, and what those that do not start are waiting for."""

import pytest

from chairlift.config.resolved import TenantConfig
from chairlift.core.events import Admitted, Preempted, Scheduled
from chairlift.core.request import BlockedOn
from chairlift.errors import RequestTooLongError
from tests.harness import Rig, alone


def blocked(rig: Rig, request_id: int) -> BlockedOn | None:
    return rig.scheduler.requests[request_id].blocked_on


def held(rig: Rig, request_id: int) -> int:
    return len(rig.scheduler.requests[request_id].pages)


@pytest.mark.parametrize(
    ("admission", "pages"), [("optimistic", 3), ("reserve-prompt", 10), ("reserve-full", 15)], ids=lambda value: value
)
def test_how_many_pages_a_request_takes_when_it_starts(admission, pages):
    rig = Rig(num_pages=40, max_num_batched_tokens=12, admission=admission)
    request_id = rig.add(40, max_tokens=21)
    rig.step()
    assert held(rig, request_id) == pages


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("mode", ["recompute", "swap", "tail"])
def test_prompts_that_take_pages_as_they_go_all_come_to_an_end(depth, mode):
    rig = Rig(
        num_pages=12,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        admission="optimistic",
        depth=depth,
        preemption_mode=mode,
    )
    prompts = [[100 * n + i for i in range(24)] for n in range(5)]
    ids = [rig.add(prompt, max_tokens=6) for prompt in prompts]
    rig.run()
    assert [rig.output[r] for r in ids] == [alone(prompt, 6) for prompt in prompts]
    assert rig.log.of(Preempted), "three prompts do not fit together, so somebody had to give way"


def test_reserve_full_never_preempts_and_the_same_load_without_it_does():
    def preemptions(admission: str) -> int:
        rig = Rig(num_pages=20, max_num_batched_tokens=32, admission=admission)
        ids = [rig.add(8, max_tokens=24) for _ in range(8)]
        rig.run()
        assert all(len(rig.output[r]) == 24 for r in ids)
        return rig.scheduler.stats().preemptions_total

    assert preemptions("reserve-full") == 0
    assert preemptions("reserve-prompt") > 0


def test_the_watermark_keeps_pages_back_while_others_run_and_only_then():
    rig = Rig(num_pages=20, max_num_batched_tokens=64, watermark=0.5, prefix_caching=False)
    large, second = rig.add(60, max_tokens=4), rig.add(8, max_tokens=4)
    rig.step()
    assert held(rig, large) == 15, "nobody else runs, so it may take more than half"
    assert blocked(rig, second) is BlockedOn.PAGES
    rig.run()
    assert len(rig.output[second]) == 4


def test_a_tenants_quota_holds_back_its_own_requests_and_nobody_else():
    rig = Rig(num_pages=100, max_num_seqs=8, max_num_batched_tokens=64, tenants={"t": TenantConfig(max_kv_pages=9)})
    own = [rig.add(12, max_tokens=5, tenant="t") for _ in range(40)]
    other = rig.add(12, max_tokens=5, tenant="other")
    rig.step()
    running = set(rig.scheduler.state.running)
    assert running == {own[0], own[1], own[2], other}
    assert blocked(rig, own[3]) is BlockedOn.QUOTA
    while rig.step() is not None:
        assert rig.scheduler.state.count_held_pages("t") <= 9
    assert len(rig.finished) == 41


def test_who_is_passed_over_can_be_told_from_who_lacks_pages_itself():
    rig = Rig(num_pages=12, max_num_seqs=8, max_num_batched_tokens=64, max_lookahead=0, prefix_caching=False)
    rig.add(24, max_tokens=4)
    rig.step()
    big, small = rig.add(40, max_tokens=2), rig.add(4, max_tokens=9)
    rig.step()
    assert blocked(rig, big) is BlockedOn.PAGES
    assert blocked(rig, small) is BlockedOn.RESERVED
    assert rig.scheduler.state.waiting.blocked_on is BlockedOn.RESERVED
    rig.run()


def test_with_all_slots_taken_everybody_waits_for_a_slot():
    rig = Rig(max_num_seqs=1)
    rig.add(4, max_tokens=10)
    rig.step()
    for _ in range(3):
        rig.add(4, max_tokens=1)
    rig.step()
    assert rig.scheduler.state.waiting.blocked_on is BlockedOn.SLOTS


def test_a_prompt_larger_than_its_tenants_quota_is_refused_at_arrival():
    rig = Rig(tenants={"t": TenantConfig(max_kv_pages=3)})
    with pytest.raises(RequestTooLongError, match=r"13 tokens.*hold 12.*max_kv_pages"):
        rig.add(13, max_tokens=1, tenant="t")
    request_id = rig.add(8, max_tokens=50, tenant="t")
    rig.run()
    assert len(rig.output[request_id]) == 5, "the output ends where the quota does"


def computed(rig: Rig) -> int:
    return sum(chunk.length for event in rig.log.of(Scheduled) for chunk in event.chunks)


@pytest.mark.parametrize("depth", [1, 2])
def test_choices_of_one_prompt_compute_it_once(depth):
    rig = Rig(num_pages=200, max_num_seqs=8, max_num_batched_tokens=64, depth=depth)
    prompt = list(range(130))
    ids = [rig.add(prompt, max_tokens=4) for _ in range(6)]
    rig.step()
    assert blocked(rig, ids[1]) is BlockedOn.PREFIX
    rig.run()
    assert all(rig.output[r] == alone(prompt, 4) for r in ids)
    # Each one computes the end of it, and while the last part is shorter than what waiting would save, a little more.
    assert computed(rig) <= 130 + 5 * (64 + 4)
    assert computed(rig) < 6 * 130 / 2


def test_whoever_waits_for_a_prefix_holds_up_nobody():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=64)
    prompt = list(range(300))
    for _ in range(20):
        rig.add(prompt, max_tokens=2)
    other = rig.add(10, max_tokens=2)
    rig.step()
    assert other in rig.scheduler.state.running
    assert len(rig.scheduler.state.running) == 2
    rig.run()


def test_an_urgent_request_does_not_wait_for_the_prefix_of_a_less_urgent_one():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=64)
    prompt = list(range(300))
    rig.add(prompt, max_tokens=2, priority=1)
    rig.step()
    urgent = rig.add(prompt, max_tokens=2)
    rig.step()
    assert urgent in rig.scheduler.state.running
    rig.run()


def test_the_longest_cached_prefix_comes_first():
    rig = Rig(num_pages=100, max_num_seqs=1, max_num_batched_tokens=64, scheduling_policy="lpm")
    long, short = list(range(40)), list(range(100, 112))
    for prompt in (long, short):
        rig.add(prompt, max_tokens=1)
    rig.run()
    blocker = rig.add(4, max_tokens=2)
    rig.step()
    cold = rig.add(10, max_tokens=1)
    warm = rig.add([*short, 7], max_tokens=1)
    hot = rig.add([*long, 7], max_tokens=1)
    rig.run()
    order = [event.request_id for event in rig.log.of(Admitted)]
    assert order[order.index(blocker) + 1 :] == [hot, warm, cold]


def test_the_shortest_predicted_work_comes_first():
    rig = Rig(num_pages=100, max_num_seqs=2, max_num_batched_tokens=64, scheduling_policy="shortest")
    for _ in range(10):
        rig.add(4, max_tokens=2, tenant="brief")
        rig.add(4, max_tokens=30, tenant="wordy")
    rig.run()
    for _ in range(2):
        rig.add(4, max_tokens=5)
    rig.step()
    wordy = rig.add(8, max_tokens=100, tenant="wordy")
    brief = rig.add(12, max_tokens=100, tenant="brief")
    assert [request.request_id for request in rig.scheduler.state.waiting] == [brief, wordy]
    rig.run()


def test_prompts_that_stand_still_half_way_together_do_not_stand_still_for_ever():
    rig = Rig(num_pages=10, max_num_batched_tokens=16, admission="optimistic", tenant_order="fair")
    prompts = [[100 * n + i for i in range(36)] for n in range(2)]
    ids = [rig.add(prompt, max_tokens=2, tenant=f"t{n}") for n, prompt in enumerate(prompts)]
    while not rig.log.of(Preempted):
        assert not rig.finished
        rig.step()
    rig.run()
    assert [rig.output[r] for r in ids] == [alone(prompt, 2) for prompt in prompts]


def test_a_prompt_without_a_page_does_not_take_the_budget_of_one_that_has_room():
    rig = Rig(num_pages=6, max_num_seqs=2, max_num_batched_tokens=6, admission="optimistic", guaranteed_share=0.0)
    relaxed = rig.add(20, max_tokens=2, priority=1)
    rig.step()
    urgent = rig.add(24, max_tokens=1)
    while held(rig, urgent) < 4:
        rig.step()
    # The urgent one fills its pages, and would have all of the budget; the other one has two more tokens of room.
    rig.run()
    assert rig.finished.keys() == {relaxed, urgent}


@pytest.mark.parametrize("depth", [1, 2])
def test_prompts_that_take_pages_as_they_go_stay_within_their_tenants_quota(depth):
    rig = Rig(
        num_pages=40,
        max_num_batched_tokens=16,
        admission="optimistic",
        long_prefill_token_threshold=4,
        tenants={"a": TenantConfig(max_kv_pages=8)},
        depth=depth,
    )
    prompts = [[100 * n + i for i in range(28)] for n in range(3)]
    ids = [rig.add(prompt, max_tokens=3, tenant="a") for prompt in prompts]
    most = 0
    while rig.step() is not None:
        most = max(most, rig.scheduler.state.count_held_pages("a"))
    assert most == 8
    assert [rig.output[r] for r in ids] == [alone(prompt, 3) for prompt in prompts]
    assert {event.cause for event in rig.log.of(Preempted)} == {"quota"}


def test_requests_that_their_quota_holds_back_are_not_promoted_past_everybody_one_after_the_other():
    rig = Rig(
        num_pages=400,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        scheduling_policy="shortest",
        admission="reserve-full",
        guaranteed_share=0.5,
        tenants={"slow": TenantConfig(max_kv_pages=70)},
    )
    for _ in range(100):
        rig.add(12, max_tokens=300, tenant="slow")
    ended = []
    for _ in range(60):
        while rig.scheduler.num_waiting < 105:
            rig.add(20, max_tokens=1, tenant="brisk")
        rig.step()
        ended.append(len(rig.finished))
    # One of the slow tenant's runs at a time, and the other slots are as good for the brisk one as ever.
    assert ended[59] - ended[49] == ended[19] - ended[9] > 10


def test_the_quota_of_requests_without_a_tenant_holds_back_no_tenant_without_a_quota():
    rig = Rig(max_num_seqs=4, tenants={"": TenantConfig(max_kv_pages=4)})
    rig.add(10, max_tokens=30)
    rig.step()
    nameless, other = rig.add(10, max_tokens=2), rig.add(10, max_tokens=2, tenant="other")
    rig.step()
    assert blocked(rig, nameless) is BlockedOn.QUOTA
    assert other not in rig.scheduler.state.waiting


def test_prompts_at_their_quota_go_on_in_the_step_in_which_another_one_gave_way_and_kept_its_pages():
    rig = Rig(
        num_pages=20,
        page_size=1,
        max_num_seqs=3,
        max_num_batched_tokens=4,
        admission="optimistic",
        preemption_mode="tail",
        long_prefill_token_threshold=1,
        prefix_caching=False,
        tenants={"a": TenantConfig(max_kv_pages=6)},
        depth=2,
    )
    ids = [rig.add(20, max_tokens=1, priority=1)]
    rig.step()
    ids += [rig.add(5, max_tokens=1, tenant="a") for _ in range(2)]
    rig.run()
    assert list(rig.finished) == [*ids[1:], ids[0]]
