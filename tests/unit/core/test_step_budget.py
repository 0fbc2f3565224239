"""With a target, steps in which somebody decodes stay within it, and prompts still advance."""

from random import Random

import pytest

from chairlift.core.step_budget import StepBudget
from chairlift.core.step_latency import StepLatencyModel
from tests.clocked import MS, ClockedRig, Step, step_time

TARGET_MS = 40.0


def percentile(values: list[int], part: float) -> int:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def decode_steps(rig: ClockedRig) -> list[Step]:
    """Steps in which somebody decoded, after the first ones, from which the model learns."""
    return [step for step in rig.executor.steps[32:] if step.num_decodes]


def run_mix(rig: ClockedRig, *, num_streams: int = 16, num_long: int = 12, long_tokens: int = 6000) -> None:
    """Streams that decode throughout, and long prompts one after the other beside them."""
    for _ in range(num_streams):
        rig.add(64, 4000)
    rig.run([(20 * MS * 40 + i, lambda: rig.add(long_tokens, 4)) for i in range(num_long)], until_ns=60_000 * MS)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_steps_stay_within_the_target_while_prompts_go_on(depth: int, noise: float) -> None:
    rig = ClockedRig(step_time(6, 0.25, 20, noise=noise), depth=depth, target_tpot_ms=TARGET_MS)
    run_mix(rig)
    steps = decode_steps(rig)
    assert percentile([step.duration_ns for step in steps], 0.99) <= 1.3 * TARGET_MS * MS
    with_prompts = [step for step in steps if step.num_prefill_tokens > 16]
    assert len(with_prompts) > 300
    # The target is used and not just kept: what the decodes leave of it goes to prompts.
    assert percentile([step.duration_ns for step in with_prompts], 0.5) >= 0.8 * TARGET_MS * MS


@pytest.mark.parametrize("target_ms", [12.0, 20.0, 60.0])
def test_a_machine_whose_step_time_has_a_knee_is_no_surprise(target_ms: float) -> None:
    """Up to 200 tokens cost nothing beside reading the weights, as on a GPU: no three coefficients fit that."""
    random = Random(1)

    def duration_ns(num_tokens: int, num_context_tokens: int) -> float:
        memory_ms = 8 + num_context_tokens * 1.5e-5
        compute_ms = 0.04 * num_tokens + num_context_tokens * 2e-6
        return (0.5 + max(memory_ms, compute_ms)) * MS * random.gauss(1, 0.05)

    rig = ClockedRig(
        duration_ns, target_tpot_ms=target_ms, max_num_seqs=64, max_num_batched_tokens=2048, num_pages=30_000
    )
    for _ in range(32):
        rig.add(500, 1000)
    rig.run([(500 * MS + i * 400 * MS, lambda: rig.add(6000, 4)) for i in range(20)], until_ns=12_000 * MS)
    steps = decode_steps(rig)
    assert percentile([step.duration_ns for step in steps], 0.99) <= 1.3 * target_ms * MS
    with_prompts = [step.duration_ns for step in steps if step.num_prefill_tokens > 16]
    assert percentile(with_prompts, 0.5) >= 0.8 * target_ms * MS


def test_without_a_target_the_same_load_is_far_over_it() -> None:
    rig = ClockedRig(step_time(6, 0.25, 20))
    run_mix(rig)
    with_prompts = [step.duration_ns for step in decode_steps(rig) if step.num_prefill_tokens > 16]
    assert percentile(with_prompts, 0.5) > 1.3 * TARGET_MS * MS


def test_prompts_get_nearly_all_that_the_target_leaves_them() -> None:
    """Prompt tokens per second under the target, against the part of the step that decodes do not take."""
    speeds = {}
    for target_ms in (None, TARGET_MS):
        rig = ClockedRig(step_time(1, 0.25, 20), target_tpot_ms=target_ms)
        run_mix(rig)
        steps = [step for step in decode_steps(rig) if step.num_prefill_tokens]
        speeds[target_ms] = sum(s.num_prefill_tokens for s in steps) / sum(s.duration_ns for s in steps)
    decode_ms = 1 + 16 * 0.25
    assert speeds[TARGET_MS] >= 0.85 * (1 - decode_ms / TARGET_MS) * speeds[None]


def test_a_machine_that_slows_down_is_followed() -> None:
    slowness = [1.0]
    exact = step_time(6, 0.25, 20)
    rig = ClockedRig(lambda tokens, context: exact(tokens, context) * slowness[0], target_tpot_ms=TARGET_MS)
    for _ in range(16):
        rig.add(64, 4000)
    rig.run([(i * 100 * MS, lambda: rig.add(2000, 4)) for i in range(20)], until_ns=10_000 * MS)
    slowness[0] = 1.8
    start = len(rig.executor.steps) + 100
    for _ in range(20):
        rig.add(2000, 4)
    rig.run(until_ns=rig.now_ns + 30_000 * MS)
    steps = [step for step in rig.executor.steps[start:] if step.num_prefill_tokens > 16]
    assert len(steps) > 100
    assert percentile([step.duration_ns for step in steps], 0.95) <= 1.3 * TARGET_MS * MS


def run_long_prompt(rig: ClockedRig, num_tokens: int = 6000) -> list[Step]:
    """Steps of a prompt beside 16 streams."""
    for _ in range(16):
        rig.add(16, 4000)
    rig.run(until_ns=2000 * MS)
    start = len(rig.executor.steps)
    long = rig.add(num_tokens, 4)
    while long.request_id not in rig.first_token_ns:
        assert rig.step() is not None
    return rig.executor.steps[start:]


def test_if_decodes_alone_take_longer_prompts_get_a_page_in_every_fourth_step() -> None:
    rig = ClockedRig(step_time(6, 0.25, 0), target_tpot_ms=8.0, num_pages=8192)
    steps = run_long_prompt(rig, 800)
    assert {step.num_prefill_tokens for step in steps} == {0, 16}
    assert len(steps) == pytest.approx(4 * 800 / 16, abs=8)


def test_where_a_page_does_not_fit_a_prompt_gets_a_part_of_it_in_every_step() -> None:
    """From 3,300 tokens on, a page takes longer than the target leaves."""
    rig = ClockedRig(step_time(6, 0.25, 500), target_tpot_ms=TARGET_MS, num_pages=8192)
    steps = run_long_prompt(rig)
    assert min(step.num_prefill_tokens for step in steps[:-1]) in range(4, 16)
    assert max(step.duration_ns for step in steps) <= TARGET_MS * MS


def test_a_step_without_prompts_does_not_make_the_next_forget_how_far_they_are() -> None:
    """From 3,000 tokens on, not even four fit: a page gets every fourth step, and never more."""
    rig = ClockedRig(step_time(6, 0.25, 2000), target_tpot_ms=TARGET_MS, num_pages=8192)
    steps = run_long_prompt(rig)
    assert min(step.num_prefill_tokens for step in steps) == 0
    assert max(step.num_prefill_tokens for step in steps[len(steps) // 2 :]) == 16


def test_a_step_in_which_nobody_decodes_is_not_cut() -> None:
    rig = ClockedRig(step_time(6, 0.25, 0), target_tpot_ms=8.0)
    rig.add(1024, 1)
    rig.run()
    assert [step.num_prefill_tokens for step in rig.executor.steps] == [256] * 4


def test_before_anything_is_known_a_page_goes_beside_the_decodes() -> None:
    budget = StepBudget(StepLatencyModel(), page_size=16)
    assert budget.limit_tokens(256, TARGET_MS, 10, 1000) == 26
    assert budget.limit_tokens(20, TARGET_MS, 10, 1000) == 20


def test_the_pause_between_steps_counts_and_idling_does_not() -> None:
    budget = StepBudget(StepLatencyModel(), page_size=16)
    now_ns = 0
    for _ in range(100):
        budget.planned(now_ns)
        budget.committed(10 * MS, 10, 0)
        now_ns += 11 * MS
    assert budget.gap_ns == pytest.approx(1 * MS, rel=0.01)
    budget.paused()
    budget.planned(now_ns + 10_000 * MS)
    assert budget.gap_ns == pytest.approx(1 * MS, rel=0.01)


def learned_budget(target_ms: float = TARGET_MS) -> StepBudget:
    """Steps of 16 decodes and 64 prompt tokens that took exactly as long as the model then says."""
    latency = StepLatencyModel()
    budget = StepBudget(latency, page_size=16)
    exact = step_time(6, 0.25, 0)
    for number in range(64):
        num_tokens = 16 if number % 2 else 80
        duration_ns = round(exact(num_tokens, 0))
        latency.observe(num_tokens, 0, duration_ns)
        budget.committed(duration_ns, num_tokens, num_tokens - 16)
    return budget


def test_a_step_that_took_too_long_makes_the_next_one_proportionally_smaller() -> None:
    budget = learned_budget()
    usual = budget.limit_tokens(2048, TARGET_MS, 16, 0)
    assert usual == pytest.approx(100, abs=2)  # the last steps had 80; a quarter more
    budget.committed(round(1.6 * TARGET_MS * MS), 80, 64)
    assert budget.limit_tokens(2048, TARGET_MS, 16, 0) == 16 + int(64 / 1.6)
    # One without prompts says nothing of it; one that keeps within the target ends it.
    budget.committed(round(1.6 * TARGET_MS * MS), 16, 0)
    assert budget.limit_tokens(2048, TARGET_MS, 16, 0) == 16 + int(64 / 1.6)
    budget.committed(round(0.9 * TARGET_MS * MS), 56, 40)
    assert budget.limit_tokens(2048, TARGET_MS, 16, 0) == usual


def test_a_step_without_decodes_does_not_say_how_many_tokens_may_go_beside_them() -> None:
    budget = learned_budget()
    usual = budget.limit_tokens(2048, TARGET_MS, 16, 0)
    budget.committed(600 * MS, 2048, 2048)
    assert budget.limit_tokens(2048, TARGET_MS, 16, 0) == usual
