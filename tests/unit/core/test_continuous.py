"""The step's rules, one by one: who decodes, how prompts share the budget, who waits and who is passed."""

from itertools import pairwise

import pytest

from chairlift.core.events import Preempted, Scheduled
from chairlift.core.request import FinishReason
from chairlift.errors import ConfigurationError, InvalidRequestError, RequestTooLongError
from tests.harness import Rig, alone


def decode_steps(rig: Rig) -> dict[int, set[int]]:
    """Request id -> numbers of the steps it decoded in."""
    steps: dict[int, set[int]] = {}
    for event in rig.log.of(Scheduled):
        for request_id in event.decodes:
            steps.setdefault(request_id, set()).add(event.step)
    return steps


def chunk_steps(rig: Rig, request_id: int) -> list[tuple[int, int]]:
    """(step, tokens) of each of a request's prefill chunks."""
    return [(e.step, c.length) for e in rig.log.of(Scheduled) for c in e.chunks if c.request_id == request_id]


def test_a_slot_that_empties_is_filled_in_the_next_step():
    rig = Rig(max_num_seqs=2, max_num_batched_tokens=64)
    short, long, waiting = rig.add(4, max_tokens=3), rig.add(4, max_tokens=20), rig.add(4, max_tokens=5)
    while short not in rig.finished:
        rig.step()
    last = rig.num_steps - 1
    rig.step()
    assert chunk_steps(rig, waiting) == [(last + 1, 4)]
    rig.run()
    assert set(rig.finished) == {short, long, waiting}


def test_b15_a_long_prompt_never_delays_a_stream_and_a_short_one_passes_it():
    rig = Rig(num_pages=200, max_num_seqs=8, max_num_batched_tokens=32)
    streams = [rig.add(4, max_tokens=60) for _ in range(4)]
    for _ in range(4):
        rig.step()
    long = rig.add(256, max_tokens=4)
    rig.step()
    short = rig.add(10, max_tokens=4)
    rig.run()
    prefill = {step for step, _ in chunk_steps(rig, long)}
    assert len(prefill) > 5
    decoded = decode_steps(rig)
    for stream in streams:
        assert prefill <= decoded[stream], "a stream missed its token in a step of the long prefill"
    assert max(step for step, _ in chunk_steps(rig, short)) <= min(prefill) + 3
    assert rig.output[long] == alone([(long * 31 + 17 * i) % 1000 + 1000 * long for i in range(256)], 4)


def test_b13_steady_arrivals_stop_neither_decodes_nor_prefills():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    decoding = [rig.add(4, max_tokens=110) for _ in range(2)]
    rig.step()
    rig.step()
    for _ in range(100):
        rig.add(32, max_tokens=1)
        rig.step()
    decoded = decode_steps(rig)
    for request_id in decoding:
        steps = sorted(decoded[request_id])
        assert all(b - a == 1 for a, b in pairwise(steps)), "one token in every step"
    per_step = [sum(c.length for c in e.chunks) for e in rig.log.of(Scheduled)]
    assert min(per_step[2:]) > 0, "prefill advances in every step"
    rig.run()


def test_the_first_in_order_gets_its_quarter_however_many_short_ones_come():
    rig = Rig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=16)
    long = rig.add(100, max_tokens=1)
    rig.step()
    while long not in rig.finished:
        rig.add(8, max_tokens=1)
        rig.add(8, max_tokens=1)
        rig.step()
        assert rig.num_steps < 40
    assert min(tokens for _, tokens in chunk_steps(rig, long)) >= 4


def test_b01_a_prompt_that_can_never_fit_is_refused_at_arrival():
    rig = Rig(num_pages=8)
    with pytest.raises(RequestTooLongError, match=r"40 tokens.*hold 32.*--kv-cache-memory"):
        rig.add(40, max_tokens=4)
    with pytest.raises(InvalidRequestError, match="no tokens"):
        rig.add([], max_tokens=4)
    assert not rig.scheduler.has_unfinished
    assert rig.scheduler.stats().num_free_pages == 8


def test_b03_a_lone_request_that_fills_the_pool_ends_with_length():
    rig = Rig(num_pages=8)
    solo = rig.add(20, max_tokens=100)
    rig.run()
    # 32 slots, and the last token needs none.
    assert rig.finished[solo] is FinishReason.LENGTH
    assert len(rig.output[solo]) == 13
    after = rig.add(4, max_tokens=4)
    rig.run()
    assert len(rig.output[after]) == 4


@pytest.mark.parametrize(("prompt", "wanted", "given"), [(15, 1, 1), (15, 10, 1), (8, 10, 8), (8, None, 8)])
def test_b44_output_is_clamped_to_the_model_length(prompt, wanted, given):
    rig = Rig(max_model_len=16)
    request_id = rig.add(prompt, max_tokens=wanted)
    rig.run()
    assert len(rig.output[request_id]) == given
    assert rig.finished[request_id] is FinishReason.LENGTH


@pytest.mark.parametrize("prompt", [16, 17])
def test_b44_a_prompt_without_room_for_one_token_is_refused(prompt):
    with pytest.raises(RequestTooLongError, match=rf"{prompt} tokens.*16 in all.*--max-model-len"):
        Rig(max_model_len=16).add(prompt, max_tokens=1)


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_takes_the_last_admitted_and_changes_no_output(depth):
    rig = Rig(num_pages=12, max_num_seqs=4, max_num_batched_tokens=32, depth=depth)
    prompts = [[100 * n + i for i in range(8)] for n in range(3)]
    ids = [rig.add(prompt, max_tokens=24) for prompt in prompts]
    rig.run()
    preempted = rig.log.of(Preempted)
    assert preempted
    assert preempted[0].request_id == ids[-1]
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert rig.output[request_id] == alone(prompt, 24)
    assert rig.scheduler.stats().preemptions_total == len(preempted)


def test_b05_a_seeded_request_survives_preemption():
    def run(num_pages: int) -> tuple[list[int], int]:
        rig = Rig(num_pages=num_pages, max_num_batched_tokens=32)
        for _ in range(3):
            rig.add(8, max_tokens=24)
        seeded = rig.add(list(range(8)), max_tokens=24, temperature=1.0)
        rig.run()
        return rig.output[seeded], sum(e.request_id == seeded for e in rig.log.of(Preempted))

    relaxed, none = run(200)
    pressed, some = run(16)
    assert none == 0
    assert some > 0
    assert relaxed == pressed


def test_b11_a_preempted_request_comes_back_before_those_that_never_started():
    rig = Rig(num_pages=12, max_num_seqs=3, max_num_batched_tokens=32)
    first, second = rig.add(8, max_tokens=30), rig.add(8, max_tokens=30)
    rig.step()
    waiting = [rig.add(30, max_tokens=2) for _ in range(2)]
    while not rig.log.of(Preempted):
        rig.step()
    assert next(iter(rig.scheduler.state.waiting)).request_id == second
    rig.run()
    assert set(rig.finished) == {first, second, *waiting}


def test_b76_a_preempted_request_that_finds_its_own_pages_is_no_hit():
    rig = Rig(num_pages=12, max_num_batched_tokens=32)
    for _ in range(3):
        rig.add(8, max_tokens=24)
    rig.run()
    stats = rig.scheduler.stats()
    assert stats.preemptions_total > 0
    assert stats.prefix_hit_tokens_total == 0
    assert stats.prompt_tokens_total == 24


def test_b32_an_abort_while_the_last_step_runs_is_an_abort():
    rig = Rig()
    request_id = rig.add(4, max_tokens=1)
    plan = rig.scheduler.plan(0)
    assert plan is not None
    handle = rig.executor.submit(plan)
    assert rig.scheduler.abort(request_id)
    committed = rig.scheduler.commit(plan.step, rig.executor.wait(handle))
    assert committed.updates == []
    assert committed.num_wasted_rows == 1
    assert not rig.scheduler.abort(request_id)
    assert rig.scheduler.stats().generation_tokens_total == 0
    assert rig.scheduler.stats().num_leased_pages == 0


@pytest.mark.parametrize("length", [4, 8, 15, 16, 17])
def test_b17_a_fully_cached_prompt_still_computes_a_token(length):
    rig = Rig()
    prompt = list(range(length))
    first, second = rig.add(prompt), None
    rig.run()
    second = rig.add(prompt)
    request = rig.scheduler.requests[second]
    rig.run()
    assert rig.output[second] == rig.output[first] == alone(prompt, 8)
    assert request.num_cached_tokens == (length - 1) // 4 * 4


def test_b19_equal_prompts_in_one_step_keep_their_own_pages():
    rig = Rig(num_pages=16, max_num_batched_tokens=64)
    a, b = rig.add(list(range(16)), max_tokens=12), rig.add(list(range(16)), max_tokens=12)
    rig.step()
    other = rig.add(16, max_tokens=12)
    rig.run()
    assert rig.output[a] == rig.output[b] == alone(list(range(16)), 12)
    assert len(rig.output[other]) == 12


def test_b21_salts_do_not_share_pages():
    rig = Rig()
    cached = []
    for salt in ("a", "b", "a", None):
        request_id = rig.add(list(range(64)), max_tokens=1, salt=salt)
        request = rig.scheduler.requests[request_id]
        rig.run()
        cached.append(request.num_cached_tokens)
    assert cached == [0, 0, 60, 0]


def test_pages_of_a_running_request_are_shared():
    rig = Rig(max_num_batched_tokens=64)
    rig.add(list(range(16)), max_tokens=20)
    rig.step()
    second = rig.add(list(range(16)), max_tokens=2)
    request = rig.scheduler.requests[second]
    rig.step()
    assert request.num_cached_tokens == 12
    rig.run()


def test_b23_the_cache_is_not_reset_under_live_requests():
    rig = Rig()
    decoding, prefilling = rig.add(list(range(8))), rig.add(list(range(100, 160)), max_tokens=2)
    rig.step()
    rig.step()
    assert not rig.scheduler.reset_prefix_cache()
    rig.run()
    assert rig.output[decoding] == alone(list(range(8)), 8)
    assert rig.output[prefilling] == alone(list(range(100, 160)), 2)
    assert rig.scheduler.reset_prefix_cache()
    assert rig.scheduler.stats().num_free_pages == 64
    assert rig.scheduler.reset_prefix_cache()


def test_b40_stop_tokens_wait_for_min_tokens():
    prompt = next(p for n in range(500) if 1 < len(alone(p := [n, n + 1], 30, stops=True)) < 5)
    rig = Rig()
    early, late = rig.add(prompt, 30, stops=True), rig.add(prompt, 30, stops=True, min_tokens=10)
    rig.run()
    assert len(rig.output[early]) < 5
    assert rig.finished[early] is FinishReason.STOP
    assert len(rig.output[late]) >= 10
    assert rig.output[late] == alone(prompt, 30, stops=True, min_tokens=10)


def test_with_chunking_off_a_prompt_over_the_budget_runs_alone_in_one_step():
    rig = Rig(num_pages=200, max_num_batched_tokens=16, enable_chunked_prefill=False)
    stream = rig.add(4, max_tokens=20)
    rig.step()
    long, short = rig.add(100, max_tokens=1), rig.add(8, max_tokens=1)
    rig.run()
    [(step, tokens)] = chunk_steps(rig, long)
    assert tokens == 100
    assert [s for s, _ in chunk_steps(rig, short)] == [step + 1]
    assert step in decode_steps(rig)[stream]


def test_a_request_without_pages_is_passed_a_bounded_number_of_times():
    rig = Rig(num_pages=12, max_num_seqs=4, max_num_batched_tokens=64, max_lookahead=2, prefix_caching=False)
    rig.add(24, max_tokens=4)  # holds 6 or 7 of 12 pages
    rig.step()
    big = rig.add(40, max_tokens=2)  # needs 10: cannot start yet
    small = [rig.add(4, max_tokens=6) for _ in range(6)]  # need 3: one more than are spare when it can
    order = []
    while len(order) < 8 and rig.step() is not None:
        order.extend(r for r in rig.finished if r not in order)
    rig.run()
    before_big = [r for r in small if order.index(r) < order.index(big)]
    assert len(before_big) == 2, "two pass it, then pages are kept for it"


def test_priority_tiers_come_before_arrival():
    rig = Rig(max_num_seqs=1, max_num_batched_tokens=16)
    rig.add(4, max_tokens=3)
    rig.step()
    late, urgent = rig.add(4, max_tokens=1, priority=5), rig.add(4, max_tokens=1, priority=-1)
    rig.run()
    assert list(rig.finished).index(urgent) < list(rig.finished).index(late)


def test_a_budget_too_small_for_all_slots_is_refused_at_start():
    with pytest.raises(ConfigurationError, match=r"--max-num-batched-tokens is 8.*20.*needed"):
        Rig(max_num_seqs=16, max_num_batched_tokens=8)


def test_a_failed_executor_ends_everything_and_the_next_epoch_works():
    rig = Rig()
    ids = [rig.add(8, max_tokens=20) for _ in range(6)]
    for _ in range(3):
        rig.step()
    rig.scheduler.plan(0)
    assert sorted(rig.scheduler.fail_all()) == ids
    rig.stepper.reset()
    stats = rig.scheduler.stats()
    assert stats.num_free_pages == stats.num_pages
    assert stats.num_running == stats.num_waiting == 0
    rig.executor.close()
    again = rig.add(list(range(8)), max_tokens=5)
    rig.run()
    assert rig.output[again] == alone(list(range(8)), 5)


def test_a_stop_string_found_outside_ends_the_request():
    rig = Rig()
    request_id = rig.add(8, max_tokens=20)
    for _ in range(5):
        rig.step()
    assert rig.scheduler.finish(request_id, FinishReason.STOP, keep_tokens=2)
    rig.run()
    assert request_id not in rig.finished
    assert rig.scheduler.stats().num_leased_pages == 0
