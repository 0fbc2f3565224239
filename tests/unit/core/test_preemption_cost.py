"""What a preemption costs, in each of the ways, and what is learnt about it."""

import pytest

from chairlift.core.preemption_cost import Loss, PreemptionCosts, Situation
from chairlift.core.step_latency import StepLatencyModel

BYTES_PER_TOKEN_70B = 2 * 80 * 8 * 128 * 2  # keys and values, layers, KV heads, head size, bf16
NS_PER_MS = 1e6


def costs(
    ns_per_token: float = 0.0, page_size: int = 16, page_bytes: int | None = None, speed: float | None = None
) -> PreemptionCosts:
    latency = StepLatencyModel()
    if ns_per_token:
        for step in range(40):
            num_tokens = 16 + 16 * (step % 8)
            latency.observe(num_tokens, 0, round(1e6 + ns_per_token * num_tokens))
    return PreemptionCosts(latency, page_size, page_bytes, speed)


def loss(num_tokens: int, *, found: int = 0, tail_tokens: int = 16, page_size: int = 16) -> Loss:
    num_pages = -(-num_tokens // page_size)
    return Loss(num_tokens - found, num_tokens, num_pages, tail_tokens, num_pages - -(-tail_tokens // page_size))


def situation(**changes: object) -> Situation:
    usual: dict = {
        "num_pool_pages": 1000,
        "num_free_host_pages": 1000,
        "num_running": 8,
        "num_context_tokens": 0,
        "num_waiting_before": 0,
        "is_pool_wanted": False,
    }
    return Situation(**{**usual, **changes})


def test_the_articles_figure_four_thousand_tokens_of_a_70b_model_take_forty_ms_each_way():
    assert BYTES_PER_TOKEN_70B == 327_680
    priced = costs(page_bytes=16 * BYTES_PER_TOKEN_70B, speed=32e9)
    assert 40 <= priced.copy_ns(4000 // 16) / NS_PER_MS <= 41
    there_and_back = priced.price("swap", loss(4000), situation())
    assert there_and_back == pytest.approx(2 * priced.copy_ns(250))


def test_the_prefill_rate_is_what_the_latency_model_learnt():
    assert costs(250_000).recompute_ns(100) == pytest.approx(100 * 250_000, rel=0.05)
    assert costs().recompute_ns(100) > 0, "a guess before anything ran"


def test_the_copy_rate_moves_to_what_copies_take():
    priced = costs(page_bytes=1_000_000, speed=10e9)
    assert priced.copy_ns_per_page == pytest.approx(100_000)
    priced.observe_copies(0, 5)
    priced.observe_copies(5, 0)
    assert priced.copy_ns_per_page == pytest.approx(100_000), "a step without copies says nothing"
    priced.observe_copies(10, 30_000_000)
    assert priced.copy_ns_per_page == pytest.approx(3_000_000), "the first copy counts for more than a guess"
    for _ in range(60):
        priced.observe_copies(4, 4_000_000)
    assert priced.copy_ns_per_page == pytest.approx(1_000_000, rel=0.05)


def test_swap_wins_where_the_link_is_fast_and_recompute_where_the_prompt_is_short_to_compute():
    slow_link = costs(1_000, page_bytes=2_000_000, speed=1e9)
    # Everything is needed, so that keeping a part is no way out.
    everything = loss(1600, tail_tokens=1600)
    assert slow_link.choose(everything, situation())[0] == "recompute"
    fast_link = costs(100_000, page_bytes=2_000_000, speed=64e9)
    mode, cost_ns = fast_link.choose(everything, situation())
    assert mode == "swap"
    assert 1.3 * cost_ns < fast_link.price("recompute", everything, situation())


def test_what_is_still_in_the_prefix_tree_is_not_lost():
    priced = costs(100_000, page_bytes=2_000_000, speed=10e9)
    assert priced.choose(loss(1600, found=1584, tail_tokens=1600), situation())[0] == "recompute"


def test_the_last_pages_go_if_that_suffices_and_nobody_needs_the_others():
    priced = costs(100_000, page_bytes=2_000_000, speed=10e9)
    assert priced.choose(loss(1600), situation())[0] == "tail"


def test_pages_kept_for_somebody_who_waits_long_are_not_free():
    priced = costs(10_000)
    kept = loss(8000)
    wanted = situation(num_pool_pages=510, is_pool_wanted=True, num_waiting_before=200, num_free_host_pages=0)
    assert priced.price("tail", kept, wanted) > priced.price("tail", kept, situation())
    assert priced.choose(kept, wanted)[0] == "recompute"


def test_tokens_without_a_host_page_are_computed_again():
    priced = costs(100_000, page_bytes=16, speed=1e9)
    half = priced.price("swap", loss(1600), situation(num_free_host_pages=50))
    assert half == pytest.approx(priced.recompute_ns(800, 800), rel=0.01)
    assert priced.choose(loss(1600, tail_tokens=1600), situation(num_free_host_pages=0))[0] == "recompute"


def test_equal_calls_give_equal_answers():
    first, second = costs(7_000), costs(7_000)
    for priced in (first, second):
        priced.observe_copies(3, 1_234_567)
        priced.observe_end(40)
    assert first.choose(loss(500), situation()) == second.choose(loss(500), situation())
