import pytest
from hypothesis import given
from hypothesis import strategies as st

import chairlift.simulator.simulation as simulation_module
from chairlift.core import invariants
from chairlift.core.fast_forward import Stretch, count_standing_steps
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan, StepResult
from chairlift.simulator.simulation import Finished, Simulation
from chairlift.workload.distributions import Uniform
from chairlift.workload.streams import Stream, Workload
from tests.simulated import PlanLog, small_engine


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    streams = []
    for index in range(draw(st.integers(1, 3))):
        longest = draw(st.sampled_from([3, 30, 120]))
        common: dict = {
            "name": f"s{index}",
            "prompt_tokens": Uniform(1, draw(st.sampled_from([2, 40, 150]))),
            "output_tokens": Uniform(1, longest),
            "num_requests": draw(st.integers(1, 8)),
            "tier": draw(st.integers(0, 1)),
            "tenant": draw(st.sampled_from(["a", "b"])),
            "ttft_deadline_ms": draw(st.sampled_from([None, 20.0, 300.0])),
            "deadline_ms": draw(st.sampled_from([None, 60.0, 900.0])),
        }
        if draw(st.booleans()):
            common["concurrency"] = draw(st.integers(1, 3))
            common["think_s"] = draw(st.sampled_from([0.0, 0.05]))
        else:
            common["rate_per_s"] = draw(st.sampled_from([2.0, 20.0, 200.0]))
        streams.append(Stream(**common))
    return Workload(tuple(streams), draw(st.integers(0, 1000)))


SCHEDULERS = st.fixed_dictionaries(
    {
        "num_pages": st.sampled_from([60, 90, 400]),
        "page_size": st.sampled_from([1, 3, 4]),
        "prefix_caching": st.booleans(),
        "num_host_pages": st.sampled_from([0, 100]),
        "scheduling_policy": st.sampled_from(["fcfs", "deadline", "shortest", "preemptive", "lpm"]),
        "tenant_order": st.sampled_from(["none", "fair"]),
        "admission": st.sampled_from(["optimistic", "reserve-prompt", "reserve-full"]),
        "preemption_policy": st.sampled_from(["last-admitted", "cheapest"]),
        "preemption_mode": st.sampled_from(["recompute", "swap", "tail", "auto"]),
        "target_tpot_ms": st.sampled_from([None, 2.0]),
        "queue_timeout_s": st.sampled_from([None, 0.05]),
    }
)


def run(workload: Workload, scheduler: dict, *, jumps: bool) -> tuple[Finished, list[StepPlan]]:
    """Run and return every plan, those that were jumped written out."""
    scheduler = dict(scheduler)
    if scheduler["page_size"] == 1:
        scheduler["num_pages"] *= 4
    if scheduler["num_host_pages"] == 0 and scheduler["preemption_mode"] == "swap":
        scheduler["preemption_mode"] = "recompute"
    log = PlanLog()
    stretches: list[Stretch] = []
    original = simulation_module.fast_forward

    def noted(*arguments: object) -> Stretch:
        stretch = original(*arguments)  # type: ignore[arg-type]
        stretches.append(stretch)
        invariants.require(arguments[0])  # type: ignore[arg-type]
        return stretch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation_module, "fast_forward", noted)
        finished = Simulation(small_engine(**scheduler), workload, jumps=jumps, observer=log).run()
    plans = {plan.step: plan for plan in log.plans}
    for stretch in stretches:
        for index in range(stretch.num_steps):
            step = stretch.first_step + index
            grown = tuple(growth for place, growth in stretch.grown if place == index)
            plans[step] = StepPlan(step, 0, stretch.num_decodes, stretch.num_decodes, grown=grown)
    return finished, [plans[step] for step in sorted(plans)]


@given(workloads(), SCHEDULERS)
def test_jumping_changes_neither_plans_nor_what_is_reported(workload: Workload, scheduler: dict) -> None:
    jumped, jumped_plans = run(workload, scheduler, jumps=True)
    stepped, stepped_plans = run(workload, scheduler, jumps=False)
    assert jumped_plans == stepped_plans
    assert [plan.step for plan in jumped_plans] == list(range(len(jumped_plans)))
    assert jumped.end_ns == stepped.end_ns
    assert stepped.num_jumped_steps == 0
    for one, other in zip(jumped.recorder.streams, stepped.recorder.streams, strict=True):
        assert list(one.ttft_ns) == list(other.ttft_ns)
        assert list(one.e2e_ns) == list(other.e2e_ns)
        assert list(one.gap_ns) == list(other.gap_ns)
        assert list(one.gap_counts) == list(other.gap_counts)
        assert one.num_preemptions == other.num_preemptions
        assert one.ends == other.ends
    assert jumped.recorder.num_useful_slots == stepped.recorder.num_useful_slots
    assert jumped.scheduler.latency.coefficients_ns == stepped.scheduler.latency.coefficients_ns
    assert jumped.scheduler.stats() == stepped.scheduler.stats()


def test_a_quiet_workload_is_mostly_jumped() -> None:
    workload = Workload((Stream(name="a", output_lengths=(100, 90, 80)),))
    scheduler = {
        "num_pages": 200, "page_size": 4, "prefix_caching": True, "num_host_pages": 0, "scheduling_policy": "fcfs",
        "tenant_order": "none", "admission": "reserve-prompt", "preemption_policy": "last-admitted",
        "preemption_mode": "recompute", "target_tpot_ms": None,
    }  # fmt: skip
    finished, plans = run(workload, scheduler, jumps=True)
    assert len(plans) == 100
    assert finished.num_jumped_steps > 80


def test_a_jump_ends_before_a_page_is_missing() -> None:
    engine = small_engine(num_pages=12, page_size=4, max_model_len=48)
    scheduler = Scheduler(engine.scheduler, engine.cache)
    for number in range(2):
        scheduler.add(Request(number, [1, 2, 3], SamplingParams(max_tokens=40, temperature=0.0)), 0)
    for _ in range(3):
        plan = scheduler.plan(0)
        assert plan is not None
        count = plan.num_decodes + sum(chunk.samples for chunk in plan.chunks)
        scheduler.commit(plan.step, StepResult(plan.step, (0,) * count, 1))
    # 12 pages of 4 are 24 tokens each; both have 5 computed tokens and room for 8.
    assert count_standing_steps(scheduler) == 24 - 5
