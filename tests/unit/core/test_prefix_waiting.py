"""However many requests wait for a prefix, they hold up nobody and cost a step nothing; then they come in order."""

import pytest

from chairlift.core.events import Admitted, Scheduled
from chairlift.core.explain import count_waiting_by_reason, explain
from chairlift.core.kv_memory import KVMemory
from chairlift.core.request import BlockedOn, FinishReason
from tests.harness import Rig, alone

PROMPT = list(range(300))


def other_prompt(number: int) -> list[int]:
    return [1000 * number + token for token in PROMPT]


def running(rig: Rig) -> list[int]:
    return list(rig.scheduler.state.running)


def waits_for_prefix(rig: Rig, request_id: int) -> bool:
    return rig.scheduler.state.waiting.waits_for_prefix(rig.scheduler.requests[request_id])


@pytest.fixture
def looks(monkeypatch) -> list[int]:
    """Ids of the waiting requests that were looked at, in order."""
    looked_at: list[int] = []
    find_start = KVMemory.find_start

    def noting(memory, request):
        looked_at.append(request.request_id)
        return find_start(memory, request)

    monkeypatch.setattr(KVMemory, "find_start", noting)
    return looked_at


@pytest.mark.parametrize("settings", [{}, {"tenant_order": "fair"}, {"scheduling_policy": "lpm"}], ids=str)
def test_behind_five_thousand_that_wait_for_one_prefix_another_prompt_starts_in_the_next_step(settings):
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=64, **settings)
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(5000)]
    behind = rig.add(10, max_tokens=30)
    rig.step()
    assert running(rig) == [burst[0], behind]
    late = rig.add(10, max_tokens=30)
    rig.step()
    assert running(rig) == [burst[0], behind, late]
    assert all(waits_for_prefix(rig, request_id) for request_id in burst[1:])


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_looks_at_nobody_of_those_who_wait_for_a_prefix_but_once(depth, looks):
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16, depth=depth)
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(2000)]
    rig.step()
    rig.step()
    assert len(looks) < 2000 + 10
    looks.clear()
    for _ in range(5):
        rig.add(4, max_tokens=1)
        rig.step()
    assert not set(looks) & set(burst)
    # Whoever computes it leaves: one takes over, one sees that, and the others need not be looked at.
    rig.scheduler.abort(burst[0])
    looks.clear()
    rig.step()
    rig.step()
    assert burst[1] in running(rig)
    assert len(set(looks) & set(burst)) <= 3
    assert sum(waits_for_prefix(rig, request_id) for request_id in burst[2:]) == 1998


def test_those_whose_prefix_gets_no_part_of_the_budget_yet_are_not_looked_at_in_each_step(looks):
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    rig.add(other_prompt(1), max_tokens=2)
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(1000)]
    rig.step()
    assert len(looks) >= 1000
    for _ in range(5):
        looks.clear()
        rig.step()
        assert running(rig) == [0]
        assert burst[0] in looks
        assert len(looks) <= 5


def test_a_burst_that_arrives_while_one_waits_already_joins_it(looks):
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(100)]
    rig.step()
    burst += [rig.add(PROMPT, max_tokens=2) for _ in range(100)]
    looks.clear()
    rig.step()
    assert looks == burst[100:]
    rig.scheduler.abort(burst[0])
    looks.clear()
    rig.step()
    assert burst[1] in running(rig)
    assert len(looks) <= 4


@pytest.mark.parametrize("depth", [1, 2])
def test_those_who_waited_for_a_prefix_come_in_the_order_in_which_they_arrived(depth):
    rig = Rig(num_pages=400, max_num_seqs=6, max_num_batched_tokens=64, depth=depth)
    burst = [rig.add([*PROMPT, 500 + number], max_tokens=1 + number % 4) for number in range(150)]
    rig.run()
    assert [event.request_id for event in rig.log.of(Admitted)] == burst
    assert all(rig.output[r] == alone([*PROMPT, 500 + n], 1 + n % 4) for n, r in enumerate(burst))
    computed = sum(chunk.length for event in rig.log.of(Scheduled) for chunk in event.chunks)
    assert computed <= 300 + 150 * (64 + 4)


@pytest.mark.parametrize("depth", [1, 2])
def test_when_who_computes_a_prefix_is_aborted_exactly_one_takes_over(depth):
    rig = Rig(
        num_pages=1000,
        max_model_len=2000,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=16,
        depth=depth,
    )
    prompts = [[*other_prompt(number), *range(9000, 10_000)] for number in range(2)]
    first, second = ([rig.add(prompt, max_tokens=2) for _ in range(100)] for prompt in prompts)
    rig.step()
    assert running(rig) == [first[0], second[0]]
    for number in range(1, 10):
        rig.scheduler.abort(first[number - 1])
        rig.step()
        rig.step()
        assert sorted(running(rig)) == [first[number], second[0]]
        assert all(waits_for_prefix(rig, r) for r in [*first[number + 1 :], *second[1:]])
    rig.run()
    finished = {r for r, reason in rig.finished.items() if reason is FinishReason.LENGTH}
    assert finished == {*first[9:], *second}


def test_several_prefixes_tiers_and_tenants_each_wait_for_their_own():
    rig = Rig(
        num_pages=2000,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        long_prefill_token_threshold=16,
        tenant_order="fair",
    )
    prompts = [other_prompt(number) for number in range(1, 4)]
    ids = {}
    for prompt_number, prompt in enumerate(prompts):
        for priority in (1, 2):
            for tenant in "abc":
                for number in range(40):
                    ids[prompt_number, priority, tenant, number] = rig.add(prompt, 2, priority=priority, tenant=tenant)
    others = [rig.add(8, 30, priority=priority, tenant=tenant) for priority in (1, 2) for tenant in "abc"]
    rig.step()
    # Of each prompt one runs, of the more urgent tier; and everybody with another prompt.
    of_burst = sorted(
        (prompt, priority) for (prompt, priority, *_), request_id in ids.items() if request_id in running(rig)
    )
    assert of_burst == [(0, 1), (1, 1), (2, 1)]
    assert set(others) <= set(running(rig))
    assert rig.scheduler.state.waiting.num_waiting_for_prefix == 3 * 2 * 3 * 40 - 3
    # A request that is more urgent than who computes its prefix does not wait for it.
    urgent = [rig.add(prompts[0], 2, priority=0) for _ in range(30)]
    rig.step()
    assert [r for r in urgent if r in running(rig)] == urgent[:1]
    rig.run()
    assert len(rig.finished) == len(ids) + len(others) + len(urgent)
    admitted = list(dict.fromkeys(event.request_id for event in rig.log.of(Admitted)))
    for tenant in "abc":
        for priority in (1, 2):
            own = [ids[0, priority, tenant, number] for number in range(40)]
            assert [r for r in admitted if r in own] == own


def test_prefixes_of_different_lengths_are_waited_for_as_long_as_they_last():
    rig = Rig(num_pages=400, max_num_seqs=4, max_num_batched_tokens=20)
    rig.add(PROMPT, max_tokens=2)
    short = [rig.add(PROMPT[:120] + other_prompt(2)[:60], max_tokens=2) for _ in range(30)]
    long = [rig.add(PROMPT[:280], max_tokens=2) for _ in range(30)]
    rig.step()
    assert all(waits_for_prefix(rig, r) for r in [*short, *long])
    while waits_for_prefix(rig, short[0]):
        rig.step()
    computing = rig.scheduler.requests[0]
    # Nothing is waited for that saves less than 64 tokens.
    assert 120 - 64 <= computing.num_computed_tokens <= 120
    assert short[0] in running(rig)
    assert all(waits_for_prefix(rig, r) for r in long)
    rig.run()
    assert all(rig.output[r] == alone(PROMPT[:280], 2) for r in long)


def test_who_waits_for_a_prefix_is_displaced_by_nobody_and_takes_over_from_who_is():
    rig = Rig(num_pages=400, max_num_seqs=2, max_num_batched_tokens=64, guaranteed_share=0.0)
    burst = [rig.add(PROMPT, max_tokens=2, priority=1) for _ in range(50)]
    rig.step()
    assert waits_for_prefix(rig, burst[1])
    urgent = [rig.add(20, max_tokens=3) for _ in range(2)]
    rig.step()
    assert running(rig) == urgent
    rig.run()
    assert all(rig.output[r] == alone(PROMPT, 2) for r in burst)
    assert list(rig.finished) == [*urgent, *burst]


def test_room_is_made_for_an_urgent_request_behind_a_burst_that_waits_for_a_prefix():
    rig = Rig(num_pages=400, max_num_seqs=2, max_num_batched_tokens=16)
    relaxed = [rig.add(8, max_tokens=90, priority=1) for _ in range(2)]
    rig.step()
    assert running(rig) == relaxed
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(200)]
    behind = rig.add(10, max_tokens=2)
    rig.step()
    rig.step()
    assert running(rig) == [burst[0], behind]


def test_whose_guaranteed_turn_has_come_waits_for_no_prefix_any_more():
    rig = Rig(num_pages=900, max_num_seqs=8, max_num_batched_tokens=64, long_prefill_token_threshold=16)
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(100)]
    rig.step()
    waiting = rig.scheduler.state.waiting
    oldest = waiting.oldest(0)
    assert oldest is not None
    assert oldest.request_id == burst[1], "those who stand aside grow older like the others"
    waiting.promote(oldest, 1e9)
    assert not waits_for_prefix(rig, burst[1])
    rig.step()
    assert running(rig) == burst[:2]
    assert all(waits_for_prefix(rig, r) for r in burst[2:])
    rig.run()
    assert [event.request_id for event in rig.log.of(Admitted)] == burst


def test_those_who_wait_keep_their_places_when_the_order_changes():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    burst = [rig.add(PROMPT, max_tokens=2 + number % 2) for number in range(100)]
    rig.step()
    before = [request.request_id for request in rig.scheduler.state.waiting]
    assert before == burst[1:]
    rig.scheduler.reconfigure({"scheduling_policy": "deadline", "tenant_order": "fair"}, 1)
    assert [request.request_id for request in rig.scheduler.state.waiting] == before
    rig.step()
    assert running(rig) == burst[:1]
    assert all(waits_for_prefix(rig, r) for r in burst[1:])
    rig.run()
    assert [event.request_id for event in rig.log.of(Admitted)] == burst


def test_time_limits_hold_for_those_who_wait_for_a_prefix():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    burst = [rig.add(PROMPT, max_tokens=2, deadline_ns=6 if number % 2 else None) for number in range(100)]
    while rig.num_steps < 9:
        rig.step()
    assert set(burst[1::2]) == rig.finished.keys()
    assert set(rig.finished.values()) == {FinishReason.DEADLINE}
    assert rig.scheduler.state.waiting.num_waiting_for_prefix == 49


def test_aborts_of_those_who_wait_leave_nothing_behind():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    burst = [rig.add([*PROMPT, 1, 2], max_tokens=2) for _ in range(3000)]
    rig.step()
    waiting = rig.scheduler.state.waiting
    [lane] = waiting._tiers[0].lanes.values()
    [cohort] = lane.cohorts.values()
    assert len(cohort.entries) == 2999
    for request_id in burst[2:]:
        rig.scheduler.abort(request_id)
    assert len(cohort.entries) < 100
    assert waiting.num_waiting_for_prefix == 1
    rig.scheduler.abort(burst[1])
    assert waiting.num_waiting_for_prefix == 0
    assert not waiting._cohort_of
    assert not lane.cohorts
    rig.run()


def test_everybody_who_waits_for_a_prefix_can_tell_so():
    rig = Rig(num_pages=400, max_num_seqs=4, max_num_batched_tokens=64)
    burst = [rig.add(PROMPT, max_tokens=2) for _ in range(1000)]
    rig.add(100, max_tokens=40)
    rig.step()
    assert count_waiting_by_reason(rig.scheduler) == {BlockedOn.PREFIX: 999}
    for request_id in (burst[1], burst[999]):
        found = explain(rig.scheduler, request_id, 1)
        assert found is not None
        assert found.blocked_on is BlockedOn.PREFIX
        assert "just being computed" in found.reason
        assert found.position == (request_id - 1 if request_id < 256 else None)
    while waits_for_prefix(rig, burst[1]) if burst[1] in rig.scheduler.state.waiting else False:
        rig.step()
    # It is there: they wait for something else now, though nobody has looked at the last one since.
    found = explain(rig.scheduler, burst[999], 1)
    assert found is not None
    assert found.blocked_on is not BlockedOn.PREFIX
    assert BlockedOn.PREFIX not in count_waiting_by_reason(rig.scheduler)


def test_choices_of_a_cached_prompt_do_not_wait_for_each_other():
    rig = Rig(num_pages=100, page_size=64, max_num_seqs=8, max_num_batched_tokens=512)
    prompt = list(range(256))
    rig.add(prompt, max_tokens=1)
    rig.run()
    choices = [rig.add(prompt, max_tokens=4) for _ in range(6)]
    rig.step()
    assert running(rig) == choices, "only the last page is computed, which each has to do itself"
    rig.run()


def test_one_step_puts_only_so_many_aside(monkeypatch):
    monkeypatch.setattr("chairlift.core.batching.candidates.MAX_PUT_ASIDE", 50)
    rig = Rig(num_pages=400, max_num_seqs=4, max_num_batched_tokens=16)
    for _ in range(120):
        rig.add(PROMPT, max_tokens=2)
    behind = rig.add(10, max_tokens=2)
    for num_asleep in (50, 100, 119):
        assert behind in rig.scheduler.state.waiting
        rig.step()
        assert rig.scheduler.state.waiting.num_waiting_for_prefix == num_asleep
    assert behind in running(rig)
