"""What is predicted for newcomers, against what then happens to them on a simulated clock."""

from math import exp, log
from random import Random
from statistics import mean, median

import pytest

from chairlift.core.wait_prediction import Newcomer
from tests.clocked import MS, ClockedRig, S, step_time


def drive(
    rig: ClockedRig,
    num_requests: int,
    rate_per_s: float,
    *,
    num_prompt_tokens: tuple[int, int],
    tokens: tuple[int, int],
    seed: int = 1,
) -> list[tuple[int, float, float]]:
    """Poisson arrivals; returns (number before it, predicted, actual wait in ms) of each one that was predicted for."""
    random = Random(seed)
    predictions = {}

    def arrive() -> None:
        length, output = random.randint(*num_prompt_tokens), max(1, round(random.expovariate(1 / mean(tokens))))
        request = rig.make_request(length, output)
        state = rig.scheduler.state
        request.expected_wait = rig.scheduler.waits.predict(state, Newcomer(length))
        if request.expected_wait is not None:
            predictions[request.request_id] = (rig.now_ns, request.expected_wait)
        rig.scheduler.add(request, rig.now_ns)

    when, arrivals = 0.0, []
    for _ in range(num_requests):
        when += random.expovariate(rate_per_s)
        arrivals.append((round(when * S), arrive))
    rig.run(arrivals)
    return [
        (expected.num_requests_ahead, expected.ttft_ns / MS, (rig.first_token_ns[request_id] - at) / MS)
        for request_id, (at, expected) in predictions.items()
    ]


def factors(results: list[tuple[int, float, float]], *, skip: int = 100) -> list[float]:
    """By what factor each was off, either way; the first ones teach the predictor."""
    return [exp(abs(log(actual / predicted))) for _, predicted, actual in results[skip:]]


def test_when_slots_are_short_predictions_are_right_within_a_factor() -> None:
    """16 slots, about 1.2 times as many arrivals as leave: the queue grows to hundreds."""
    rig = ClockedRig(step_time(8, 0.05), max_num_seqs=16)
    results = drive(rig, 700, 26, num_prompt_tokens=(10, 200), tokens=(40, 120))
    queued = [result for result in results if result[0] > 4]
    assert len(queued) > 300
    off = factors(queued, skip=50)
    assert median(off) < 1.25
    assert sorted(off)[int(len(off) * 0.9)] < 1.8
    assert rig.scheduler.waits.num_checked == len(results)


@pytest.mark.parametrize(("chunked", "usual", "most"), [(False, 1.25, 1.8), (True, 2.0, 6.0)])
def test_when_prompts_are_the_bottleneck_predictions_are_right_within_a_factor(
    *, chunked: bool, usual: float, most: float
) -> None:
    """Short answers to long prompts, more of them than can be computed.

    In order of arrival that is easy to predict. Where shorter prompts pass longer ones, what a long one waits for has
    mostly not arrived yet.
    """
    rig = ClockedRig(step_time(5, 0.2), max_num_seqs=64, num_pages=16384, enable_chunked_prefill=chunked)
    results = drive(rig, 400, 3.2, num_prompt_tokens=(500, 2500), tokens=(3, 5))
    queued = [result for result in results if result[0] > 1]
    assert len(queued) > 100
    off = factors(queued, skip=50)
    assert median(off) < usual
    assert sorted(off)[int(len(off) * 0.9)] < most


def test_when_pages_are_short_predictions_are_right_within_a_factor() -> None:
    rig = ClockedRig(step_time(8, 0.05), max_num_seqs=64, num_pages=160)
    results = drive(rig, 500, 18, num_prompt_tokens=(100, 300), tokens=(40, 80))
    queued = [result for result in results if result[0] > 4]
    assert len(queued) > 150
    off = factors(queued, skip=50)
    assert median(off) < 1.5
    assert sorted(off)[int(len(off) * 0.9)] < 3


def test_an_idle_engine_predicts_about_the_time_of_the_prompt() -> None:
    rig = ClockedRig(step_time(5, 0.2))
    drive(rig, 60, 1, num_prompt_tokens=(200, 1000), tokens=(5, 20))
    start, prediction = rig.now_ns, rig.scheduler.waits.predict(rig.scheduler.state, Newcomer(1000))
    request = rig.add(1000, 4)
    rig.run()
    assert prediction is not None
    assert prediction.kind == "none"
    assert prediction.num_missing_departures == 0
    assert prediction.ttft_ns == pytest.approx(rig.first_token_ns[request.request_id] - start, rel=0.5)


def test_it_learns_from_its_errors() -> None:
    rig = ClockedRig(step_time(8, 0.05), max_num_seqs=16)
    drive(rig, 600, 26, num_prompt_tokens=(10, 200), tokens=(40, 120))
    assert 1.0 < rig.scheduler.waits.error_factor < 1.5


def test_nothing_is_known_before_anything_ran() -> None:
    rig = ClockedRig(step_time(8, 0.05))
    assert rig.scheduler.waits.predict(rig.scheduler.state, Newcomer(100)) is None


def test_a_prediction_changes_nothing() -> None:
    def first_tokens(*, asks: bool) -> dict[int, int]:
        rig = ClockedRig(step_time(8, 0.05), max_num_seqs=4)
        for count in range(60):
            rig.add(50 + count, 20)
            if asks:
                rig.scheduler.waits.predict(rig.scheduler.state, Newcomer(70))
            rig.step()
        rig.run()
        return rig.first_token_ns

    assert first_tokens(asks=True) == first_tokens(asks=False)


def test_the_urgent_do_not_wait_for_the_less_urgent() -> None:
    rig = ClockedRig(step_time(8, 0.05), max_num_seqs=4)
    for _ in range(30):
        rig.add(50, 20, priority=1)
    rig.run(until_ns=800 * MS)
    predict = rig.scheduler.waits.predict
    state = rig.scheduler.state
    urgent, equal = predict(state, Newcomer(50, tier=0)), predict(state, Newcomer(50, tier=1))
    assert urgent is not None
    assert equal is not None
    assert urgent.num_requests_ahead == 0
    assert urgent.num_missing_departures == 0
    assert equal.num_requests_ahead == rig.scheduler.num_waiting
    assert equal.ttft_ns > 4 * urgent.ttft_ns


def test_under_fair_a_new_tenant_does_not_wait_for_anothers_backlog() -> None:
    waits = {}
    for order in ("none", "fair"):
        rig = ClockedRig(step_time(8, 0.05), max_num_seqs=4, tenant_order=order)
        for _ in range(60):
            rig.add(50, 20, tenant="many")
        rig.run(until_ns=800 * MS)
        waits[order] = rig.scheduler.waits.predict(rig.scheduler.state, Newcomer(50, tenant="few"))
    assert waits["fair"].num_requests_ahead <= 2
    assert waits["none"].num_requests_ahead > 20
    assert waits["none"].ttft_ns > 4 * waits["fair"].ttft_ns
