"""Giving way: who does, for whom, what becomes of its pages, and that nobody's tokens change."""

import itertools
from typing import Any

import pytest

from chairlift.config.resolved import TenantConfig
from chairlift.core.events import Admitted, Preempted
from chairlift.core.giving_way import preempt, price_victims
from chairlift.core.policies.preemption import Cheapest, LastAdmitted
from chairlift.core.request import BlockedOn, FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_draft import StepDraft
from chairlift.core.token_budget import TokenBudget
from chairlift.core.views import RequestView
from tests.harness import Rig, alone

MODES = ["recompute", "swap", "tail", "auto"]
DEPTHS = pytest.mark.parametrize("depth", [1, 2])
EVERY_MODE = pytest.mark.parametrize("mode", MODES)


def prompt(number: int, length: int = 8) -> list[int]:
    return [1000 * number + i for i in range(length)]


def pressed(mode: str, *, num_pages: int = 12, num_host_pages: int = 64, **options: Any) -> Rig:
    """A pool in which three requests of 8 + 24 tokens do not fit."""
    return Rig(
        num_pages=num_pages,
        num_host_pages=num_host_pages,
        max_num_batched_tokens=32,
        preemption_mode=mode,
        **options,
    )


def run_three(rig: Rig) -> list[int]:
    ids = [rig.add(prompt(n), max_tokens=24) for n in range(3)]
    rig.run()
    for n, request_id in enumerate(ids):
        assert rig.output[request_id] == alone(prompt(n), 24)
    return ids


@DEPTHS
@EVERY_MODE
@pytest.mark.parametrize("policy", ["last-admitted", "cheapest"])
@pytest.mark.parametrize("caching", [True, False])
def test_no_output_changes(mode, depth, policy, caching):
    rig = pressed(mode, depth=depth, preemption_policy=policy, prefix_caching=caching)
    run_three(rig)
    assert rig.log.of(Preempted)


@DEPTHS
@pytest.mark.parametrize("caching", [True, False])
def test_swapped_requests_resume_where_they_were(depth, caching):
    rig = pressed("swap", depth=depth, prefix_caching=caching)
    run_three(rig)
    stats = rig.scheduler.stats()
    assert stats.recomputed_tokens_total == 0
    assert 0 < stats.swapped_in_pages_total <= stats.swapped_out_pages_total
    for event in rig.log.of(Preempted):
        assert (event.mode, event.num_lost_tokens) == ("swap", 0)
        assert event.num_swapped_pages > 0
    resumes = [event for event in rig.log.of(Admitted) if event.is_resume]
    assert sum(event.num_swapped_pages for event in resumes) == stats.swapped_in_pages_total
    assert all(event.num_queried_tokens - event.num_cached_tokens == 1 for event in resumes)


def test_a_full_host_tier_keeps_the_first_pages():
    rig = pressed("swap", num_host_pages=2, prefix_caching=False)
    run_three(rig)
    events = rig.log.of(Preempted)
    assert all(event.num_swapped_pages <= 2 for event in events)
    assert any(event.num_swapped_pages == 2 and event.num_lost_tokens > 0 for event in events)
    stats = rig.scheduler.stats()
    assert stats.swapped_in_pages_total > 0
    lost = sum(event.num_recomputed_tokens for event in rig.log.of(Admitted))
    assert stats.recomputed_tokens_total == lost > 0


def test_swap_without_a_host_tier_computes_again():
    rig = pressed("swap", num_host_pages=0)
    run_three(rig)
    assert {event.mode for event in rig.log.of(Preempted)} == {"recompute"}


@DEPTHS
def test_a_tail_costs_a_page_where_recomputing_costs_all(depth):
    rigs = {mode: pressed(mode, depth=depth, prefix_caching=False) for mode in ("tail", "recompute")}
    for rig in rigs.values():
        run_three(rig)
    lost = {mode: rig.scheduler.stats().recomputed_tokens_total for mode, rig in rigs.items()}
    assert 0 < lost["tail"] < lost["recompute"] / 2
    first = rigs["tail"].log.of(Preempted)[0]
    assert first.mode == "tail"
    assert first.num_freed_pages <= 3


def test_who_waits_with_pages_loses_them_before_anybody_else_is_preempted():
    rig = pressed("tail", prefix_caching=False)
    ids = [rig.add(prompt(n), max_tokens=24) for n in range(3)]
    state = rig.scheduler.state
    while not rig.log.of(Preempted):
        rig.step()
    (holder,) = state.kept.holders.values()
    assert holder.request_id == ids[-1]
    kept = len(holder.pages)
    assert kept > 0
    while holder.request_id in state.kept.holders and holder.num_preemptions == 1:
        before = len(rig.log.of(Preempted))
        pages = len(holder.pages)
        rig.step()
        if len(rig.log.of(Preempted)) > before:
            assert pages == 0, "somebody who ran was preempted while pages were kept for one who waits"
    rig.run()


def test_pages_in_the_prefix_tree_are_used_before_host_pages():
    rig = pressed("swap", num_pages=16)
    victim = rig.add(prompt(1), max_tokens=20)
    rig.step()
    for _ in range(6):
        rig.step()
    urgent = rig.add(prompt(2, 40), max_tokens=8, priority=-1)
    while not rig.log.of(Preempted):
        rig.step()
    (event,) = rig.log.of(Preempted)
    assert event.request_id == victim
    rig.run()
    (resume,) = [event for event in rig.log.of(Admitted) if event.is_resume]
    assert resume.num_swapped_pages < event.num_swapped_pages
    assert resume.num_recomputed_tokens == 0
    assert rig.output[victim] == alone(prompt(1), 20)
    assert rig.output[urgent] == alone(prompt(2, 40), 8)


@EVERY_MODE
@pytest.mark.parametrize("how", ["abort", "fail", "deadline"])
def test_what_was_kept_comes_back_when_the_request_ends_while_it_waits(mode, how):
    rig = pressed(mode)
    ids = [
        rig.add(prompt(n), max_tokens=24, deadline_ns=14 if how == "deadline" and n == 2 else None) for n in range(3)
    ]
    while not rig.log.of(Preempted):
        rig.step()
    victim = rig.log.of(Preempted)[0].request_id
    if how == "abort":
        assert rig.scheduler.abort(victim)
    elif how == "fail":
        rig.stepper.reset()
        assert set(rig.scheduler.fail_all()) == set(ids)
        stats = rig.scheduler.stats()
        assert (stats.num_free_pages, stats.num_free_host_pages) == (stats.num_pages, stats.num_host_pages)
    rig.run()
    if how == "deadline":
        assert rig.finished[victim] is FinishReason.DEADLINE


def test_an_abort_between_a_preemption_and_the_plan_that_carries_it_drops_the_copies():
    rig = pressed("swap", num_host_pages=3, max_num_seqs=1)
    first = rig.add(prompt(1), max_tokens=20)
    for _ in range(3):
        rig.step()
    state = rig.scheduler.state
    state.host.move_out(state.running[first])
    state.host.discard(state.running[first])
    assert state.host.take_copies() == ()
    assert state.host.num_free == 3


@DEPTHS
@EVERY_MODE
@pytest.mark.parametrize("lack", ["slots", "pages"])
def test_b09_an_urgent_arrival_runs_within_two_steps(mode, depth, lack):
    num_pages = 100 if lack == "slots" else 20
    rig = pressed(mode, depth=depth, num_pages=num_pages, max_num_seqs=2 if lack == "slots" else 8, max_model_len=80)
    running = [rig.add(prompt(n, 20), max_tokens=16, priority=1) for n in range(2 if lack == "slots" else 3)]
    for _ in range(4):
        rig.step()
    urgent = rig.add(prompt(9, 24), max_tokens=10)
    planned = rig.scheduler._next_step
    rig.step()
    rig.step()
    admitted = next(event for event in rig.log.of(Admitted) if event.request_id == urgent)
    assert admitted.step <= planned + 1
    assert [event.cause for event in rig.log.of(Preempted)] == ["slots" if lack == "slots" else "urgency"]
    rig.run()
    assert rig.output[urgent] == alone(prompt(9, 24), 10)
    for n, request_id in enumerate(running):
        assert rig.output[request_id] == alone(prompt(n, 20), 16)


def test_b09_equals_and_less_urgent_ones_displace_nobody():
    rig = pressed("recompute", num_pages=100, max_num_seqs=2)
    running = [rig.add(prompt(n), max_tokens=24) for n in range(2)]
    rig.step()
    rig.add(prompt(3))
    rig.add(prompt(4), priority=1)
    rig.run()
    assert not rig.log.of(Preempted)
    assert set(rig.finished) >= set(running)


def test_nobody_is_displaced_for_a_request_that_would_not_fit_then():
    rig = pressed("recompute", num_pages=20, max_num_seqs=4)
    equal = rig.add(prompt(1, 40), max_tokens=30)
    batch = rig.add(prompt(2, 8), max_tokens=30, priority=1)
    rig.step()
    rig.step()
    urgent = rig.add(prompt(3, 60), max_tokens=2)
    for _ in range(5):
        rig.step()
    assert not rig.log.of(Preempted)
    rig.run()
    assert set(rig.finished) == {equal, batch, urgent}


def test_who_was_displaced_often_enough_is_left_alone():
    rig = pressed("recompute", num_pages=100, max_num_seqs=1, max_preemptions=2)
    batch = rig.add(prompt(0), max_tokens=40, priority=1)
    for n in range(1, 6):
        while len(rig.output[batch]) < 3 * n:
            rig.step()
        rig.add(prompt(n), max_tokens=2)
    rig.run()
    assert len(rig.log.of(Preempted)) == 2
    assert rig.output[batch] == alone(prompt(0), 40)


def test_who_came_back_is_left_alone_until_it_has_gained_something():
    rig = pressed("recompute", num_pages=100, max_num_seqs=1, max_preemptions=50, prefix_caching=False)
    batch = rig.add(prompt(0, 40), max_tokens=12, priority=1)
    for n in range(1, 200):
        if batch in rig.scheduler.state.running:
            rig.add(prompt(n, 4), max_tokens=1)
        if rig.step() is None:
            break
    assert rig.output[batch] == alone(prompt(0, 40), 12)
    tokens = [event.num_lost_tokens for event in rig.log.of(Preempted)]
    assert len(tokens) > 5
    # The prompt alone takes two steps to compute again; in between it was not displaced.
    assert all(later > earlier for earlier, later in itertools.pairwise(tokens))


def test_the_last_token_is_waited_for():
    rig = pressed("recompute", num_pages=100, max_num_seqs=1)
    batch = rig.add(prompt(0), max_tokens=4, priority=1)
    while len(rig.output[batch]) < 3:
        rig.step()
    rig.add(prompt(1), max_tokens=2)
    rig.run()
    assert not rig.log.of(Preempted)


def test_a_promoted_request_displaces_and_is_not_displaced():
    rig = pressed("recompute", num_pages=100, max_num_seqs=1)
    running = rig.add(prompt(0), max_tokens=300)
    for _ in range(3):
        rig.step()
    waiting = rig.add(prompt(1), max_tokens=20, priority=5)
    state = rig.scheduler.state
    # As the guaranteed share does it: overdue once so many tokens were computed.
    state.waiting.promote(state.requests[waiting], 15.0)
    rig.step()
    assert list(state.running) == [running], "its turn has come, but is not overdue"
    while waiting not in state.running:
        rig.step()
    assert running not in rig.finished
    assert [event.request_id for event in rig.log.of(Preempted)] == [running]
    rig.add(prompt(2), max_tokens=2, priority=-3)
    for _ in range(4):
        rig.step()
    assert list(state.running) == [waiting]
    rig.run()


@DEPTHS
@EVERY_MODE
@pytest.mark.parametrize("lack", ["slots", "pages"])
def test_a_long_runner_yields_to_an_equal_that_has_waited(mode, depth, lack):
    rig = pressed(
        mode,
        depth=depth,
        num_pages=100 if lack == "slots" else 21,
        max_num_seqs=1 if lack == "slots" else 4,
        scheduling_policy="preemptive",
        quantum_tokens=10,
        max_equal_wait_ms=0,
        max_preemptions=2,
    )
    long = rig.add(prompt(0), max_tokens=60)
    rig.step()
    short = rig.add(prompt(1, 12 if lack == "slots" else 70), max_tokens=12)
    rig.run()
    quantum = [event for event in rig.log.of(Preempted) if event.cause == "quantum"]
    assert quantum
    assert quantum[0].request_id == long
    assert max(sum(e.request_id == i for e in quantum) for i in (long, short)) <= 2
    assert list(rig.finished) == [short, long]
    assert rig.output[long] == alone(prompt(0), 60)


def test_nobody_yields_before_its_quantum_or_to_one_that_waited_too_short():
    short_wait = pressed(
        "recompute",
        max_num_seqs=1,
        num_pages=100,
        scheduling_policy="preemptive",
        quantum_tokens=5,
        max_equal_wait_ms=1,
    )
    long_quantum = pressed(
        "recompute",
        max_num_seqs=1,
        num_pages=100,
        scheduling_policy="preemptive",
        quantum_tokens=50,
        max_equal_wait_ms=0,
    )
    for rig in (short_wait, long_quantum):
        rig.add(prompt(0), max_tokens=40)
        rig.step()
        rig.add(prompt(1), max_tokens=4)
        rig.run()
        assert not rig.log.of(Preempted)


def test_a_tenant_at_its_quota_takes_pages_from_its_own():
    rig = pressed("recompute", num_pages=100, max_num_seqs=8, tenants={"small": TenantConfig(max_kv_pages=8)})
    other = rig.add(prompt(0), max_tokens=24)
    mine = [rig.add(prompt(n), max_tokens=20, tenant="small") for n in (1, 2)]
    while rig.step() is not None:
        held = rig.scheduler.state.count_held_pages("small")
        assert held <= 8
    assert {event.cause for event in rig.log.of(Preempted)} == {"quota"}
    assert {event.request_id for event in rig.log.of(Preempted)} <= set(mine)
    assert rig.output[other] == alone(prompt(0), 24)
    for n, request_id in zip((1, 2), mine, strict=True):
        assert rig.output[request_id] == alone(prompt(n), 20)


@EVERY_MODE
def test_usage_and_seeded_sampling_do_not_tell(mode):
    def run(num_pages: int) -> tuple[list[int], int, int]:
        rig = pressed(mode, num_pages=num_pages)
        cached: dict[int, int] = {}
        shared = prompt(9, 12)
        for n in range(4):
            rig.add([*shared, n], max_tokens=18, temperature=1.0, min_tokens=5, stops=True)
        while (outcome := rig.step()) is not None:
            for update in outcome.updates:
                cached.setdefault(update.request_id, update.num_cached_tokens)
                assert cached[update.request_id] == update.num_cached_tokens
        outputs = [token for request_id in sorted(rig.output) for token in [request_id, *rig.output[request_id]]]
        return outputs, rig.scheduler.stats().generation_tokens_total, len(rig.log.of(Preempted))

    relaxed, relaxed_tokens, none = run(200)
    tight, tight_tokens, some = run(14)
    assert (none, some > 0) == (0, True)
    assert (relaxed, relaxed_tokens) == (tight, tight_tokens)


def test_a_swapped_request_says_what_it_waits_for():
    rig = pressed("swap")
    for n in range(3):
        rig.add(prompt(n), max_tokens=24)
    state = rig.scheduler.state
    while not any(request.host_lease for request in state.requests.values()):
        rig.step()
    rig.step()
    (waiting,) = state.waiting
    assert waiting.blocked_on is BlockedOn.SWAP_IN
    rig.run()


class Prices:
    now_ns = 0
    num_useful_pages = 10
    overhead_ns = 16.0

    def num_freed_pages(self, request: RequestView) -> int:
        return request.num_prompt_tokens

    def cost_ns(self, request: RequestView) -> float:
        return float(request.num_computed_tokens)


def candidate(
    request_id: int,
    num_pages: int,
    num_computed: int,
    *,
    priority: int = 0,
    preempted: int = 0,
    deadline: int | None = None,
) -> Request:
    request = Request(request_id, [0] * num_pages, SamplingParams(), priority=priority, deadline_ns=deadline)
    request.num_computed_tokens = num_computed
    request.num_preemptions = preempted
    return request


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([candidate(0, 9, 0), candidate(1, 5, 90), candidate(2, 5, 40), candidate(3, 5, 80)], 2),
        ([candidate(0, 9, 0), candidate(1, 9, 80), candidate(2, 3, 80)], 1),
        ([candidate(0, 9, 0), candidate(1, 500, 90), candidate(2, 9, 80)], 2),
        ([candidate(0, 9, 0), candidate(1, 5, 80), candidate(2, 5, 80)], 2),
        ([candidate(0, 9, 10, priority=1), candidate(1, 9, 0), candidate(2, 9, 500, priority=1)], 0),
        ([candidate(0, 9, 0), candidate(1, 5, 50), candidate(2, 5, 40, preempted=2)], 1),
        ([candidate(0, 9, 0), candidate(1, 5, 50), candidate(2, 5, 40, deadline=1)], 1),
        ([candidate(7, 9, 0)], 7),
    ],
    ids=["less work", "more pages", "no more than are of use", "last of equals", "tier", "again", "deadline", "alone"],
)
def test_cheapest(candidates, expected):
    assert Cheapest().choose(candidates, Prices()).request_id == expected


class NoPrices(Prices):
    def cost_ns(self, request: RequestView) -> float:
        raise AssertionError("nobody asked for prices")


def test_last_admitted_asks_for_no_prices():
    candidates = [candidate(0, 1, 1), candidate(1, 1, 1, priority=1), candidate(2, 1, 1)]
    assert LastAdmitted().choose(candidates, NoPrices()).request_id == 1
    assert LastAdmitted().choose(candidates[::2], NoPrices()).request_id == 2


def test_cheapest_loses_less_than_last_admitted():
    """Long prompts with short outputs, beside short ones: the long ones should not be computed twice."""

    def lost(policy: str) -> int:
        rig = Rig(
            num_pages=60, max_num_seqs=12, max_num_batched_tokens=64, preemption_policy=policy, prefix_caching=False
        )
        for n in range(30):
            rig.add(prompt(n, 60 if n % 3 == 2 else 6), max_tokens=4 if n % 3 == 2 else 24)
        rig.run()
        return rig.scheduler.stats().recomputed_tokens_total

    assert lost("cheapest") < lost("last-admitted")


def test_whoever_comes_first_gets_pages_that_only_those_who_wait_share():
    """Two that yielded keep the pages of their common beginning; the whole pool is wanted, and nobody runs."""
    rig = Rig(
        num_pages=12,
        max_num_seqs=2,
        scheduling_policy="preemptive",
        preemption_mode="tail",
        admission="reserve-full",
        max_lookahead=0,
        guaranteed_share=0.0,
        max_equal_wait_ms=1000,
    )
    long_runners = [0, 1]
    for number in long_runners:
        assert rig.add([*range(8), 8 + number], max_tokens=10) == number
        while not rig.output[number]:
            rig.step()
    whole_pool = rig.add(40, max_tokens=8)
    state, now_ns = rig.scheduler.state, rig.num_steps + 1
    draft = StepDraft(-1, now_ns, TokenBudget(16))
    for request in list(state.running.values()):
        preempt(state, request, "quantum", draft, price_victims(state, now_ns, 0, 1))
    assert len({page for number in long_runners for page in state.requests[number].pages[:2]}) == 2
    rig.run()
    assert next(iter(rig.finished)) == whole_pool
    for number in long_runners:
        assert rig.output[number] == alone([*range(8), 8 + number], 10)


def test_nobody_gives_way_to_a_request_behind_one_for_which_pages_are_kept():
    rig = Rig(num_pages=16, max_num_seqs=2, max_num_batched_tokens=80)
    stays = [rig.add(prompt(n, length), max_tokens=30, priority=2) for n, length in enumerate((8, 28))]
    rig.step()
    large = rig.add(prompt(3, 60), max_tokens=2, priority=2)
    queue = rig.scheduler.state.waiting
    queue.promote(rig.scheduler.requests[large], turn=1e9)
    urgent = rig.add(prompt(4, 4), max_tokens=2)
    rig.step()
    assert not rig.log.of(Preempted), "the pages that come free would be kept for the large request"
    assert set(rig.scheduler.state.running) == set(stays)
    rig.run()
    assert len(rig.output[urgent]) == len(rig.output[large]) == 2


def test_nobody_gives_way_to_a_request_that_its_tenants_quota_holds_back():
    rig = Rig(
        num_pages=100, max_num_seqs=2, max_num_batched_tokens=64, tenants={"small": TenantConfig(max_kv_pages=10)}
    )
    rig.add(prompt(0, 24), max_tokens=8, tenant="small")
    rig.add(prompt(1), max_tokens=60, priority=2)
    rig.step()
    for number, length in ((2, 24), (3, 4)):
        rig.add(prompt(number, length), max_tokens=4, tenant="small")
    rig.step()
    assert not rig.log.of(Preempted), "the second one of the tenant does not pass the first"
    rig.run()


def test_pages_that_a_request_finds_are_no_room_for_it():
    rig = Rig(num_pages=12, max_num_seqs=3, max_num_batched_tokens=64)
    rig.add(prompt(0, 12), max_tokens=30)
    victim = rig.add(prompt(1, 20), max_tokens=12, priority=1)
    for _ in range(2):
        rig.step()
    while len(rig.scheduler.requests[victim].pages) < 7:
        rig.step()
    rig.add([*prompt(1, 20), *prompt(2, 24)], max_tokens=2)
    rig.step()
    assert not [event for event in rig.log.of(Preempted) if event.cause == "urgency"]
    rig.run()
