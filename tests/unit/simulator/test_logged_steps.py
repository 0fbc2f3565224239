from typing import Any

import pytest

from chairlift.core.logged_scheduler import LoggedScheduler
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.stepper import Stepper
from chairlift.errors import ConfigurationError
from chairlift.simulator.clock import Clock
from chairlift.simulator.executor import SimulatedExecutor
from chairlift.simulator.fit import TimedStep
from chairlift.simulator.logged_steps import read_steps
from tests.simulated import PlanLog, SizedLatency, small_engine

PAUSE_NS = 70_000


def request_of(number: int, num_prompt_tokens: int, num_output_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
    return Request(number, bytearray(num_prompt_tokens), sampling)


def log_of_a_run(**settings: Any) -> list[dict[str, Any]]:
    """The log of a scheduler whose steps take what the latency model says, with a pause between two of them."""
    engine = small_engine(num_pages=24, max_model_len=90, **settings)
    entries: list[dict[str, Any]] = []
    scheduler = LoggedScheduler(engine.scheduler, engine.cache, write=entries.append)
    clock = Clock()
    stepper = Stepper(scheduler, SimulatedExecutor(engine.latency, 4, clock, PlanLog()))
    for number in range(12):
        scheduler.add(request_of(number, 5 + number * 7 % 40, 20 + number % 20), clock.now_ns)
    while stepper.step(clock.now_ns) is not None:
        clock.now_ns += PAUSE_NS
    return entries


@pytest.mark.parametrize("settings", [{}, {"preemption_mode": "swap", "num_host_pages": 60}], ids=str)
def test_steps_of_a_log_are_what_ran_and_how_long_it_took(settings: dict[str, Any]) -> None:
    entries = log_of_a_run(**settings)
    found = read_steps(entries)
    commits = [entry for entry in entries if entry["kind"] == "commit"]
    # All but the first two, which warm up.
    assert [step.duration_ns for step in found.steps] == [entry["ns"] for entry in commits[2:]]
    latency = SizedLatency()
    assert found.steps == [TimedStep(shape, latency.time(shape, 4).duration_ns) for shape, _ in found.steps]
    assert {pause for _, pause in found.overheads} == {PAUSE_NS}
    assert found.cache["num_pages"] == 24
    assert found.scheduler["max_num_seqs"] == 4
    if settings:
        assert any(step.shape.num_pages_out for step in found.steps)
        assert any(step.shape.num_pages_in for step in found.steps)


def test_what_is_no_log_or_has_no_steps_is_refused() -> None:
    entries = log_of_a_run()
    with pytest.raises(ConfigurationError, match="does not begin"):
        read_steps(entries[1:])
    with pytest.raises(ConfigurationError, match="no steps"):
        read_steps(entries[:3])
    with pytest.raises(ConfigurationError, match="no steps"):
        read_steps([])


def test_a_long_log_is_thinned_out_evenly() -> None:
    found = read_steps(log_of_a_run())
    found.steps *= 200
    some = found.some_steps()
    assert 2000 < len(some) <= 4000
    assert some[1] == found.steps[-(-len(found.steps) // 4000)]
