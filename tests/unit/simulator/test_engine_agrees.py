"""The engine's own loop on the toy model and the simulator make the same plans of one trace."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.config.sections import QueueSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan
from chairlift.core.stepper import Stepper
from chairlift.engine.engine_events import EngineEvents
from chairlift.engine.messages import AddRequest, Choice, ModelInfo
from chairlift.engine.runner import EngineRunner
from chairlift.execution.fake import FakeExecutor
from chairlift.simulator.latency.model import ConstantLatency
from chairlift.simulator.setup import SimulatedEngine
from chairlift.simulator.simulation import Simulation
from chairlift.workload.items import WorkRequest, distinct_prompt
from chairlift.workload.streams import Stream, Workload
from tests.harness import present
from tests.simulated import PlanLog, small_engine

STEP_NS = 1_000_000
VOCAB_SIZE = 50_000


class LoggingExecutor(FakeExecutor):
    """Keeps every plan before it runs."""

    def __init__(self, log: list[StepPlan], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._log = log

    def submit(self, plan: StepPlan) -> Any:
        self._log.append(plan)
        return super().submit(plan)


def run_engine(engine: SimulatedEngine, streams: Iterable[Stream], requests: Iterable[WorkRequest]) -> list[StepPlan]:
    """Drive the engine's runner as its loop does, on a clock that moves by the duration of steps."""
    log: list[StepPlan] = []
    streams = tuple(streams)
    events = EngineEvents(engine.scheduler, engine.cache)
    scheduler = Scheduler(engine.scheduler, engine.cache, events=events)
    executor = LoggingExecutor(
        log,
        engine.cache.num_pages,
        engine.cache.page_size,
        num_host_pages=engine.cache.num_host_pages,
        vocab_size=VOCAB_SIZE,
        step_duration_ns=STEP_NS,
    )
    info = ModelInfo(
        name="toy", max_model_len=engine.scheduler.max_model_len, num_pages=engine.cache.num_pages,
        page_size=engine.cache.page_size, dtype="float32", vocab_size=VOCAB_SIZE, eos_token_ids=frozenset(),
        embedding_size=16, max_num_seqs=engine.scheduler.max_num_seqs,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens, description="",
    )  # fmt: skip
    runner = EngineRunner(scheduler, Stepper(scheduler, executor, engine.pipeline_depth), events, QueueSettings(), info)
    pending = list(enumerate(requests))
    now_ns = 0
    while pending or runner.has_unfinished:
        while pending and pending[0][1].arrival_ns <= now_ns:
            number, request = pending.pop(0)
            stream = streams[request.stream]
            message = AddRequest(
                choices=(Choice(number, 0),),
                prompt_token_ids=tuple(distinct_prompt(request, number, VOCAB_SIZE)),
                sampling=SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True),
                stop_token_ids=frozenset(),
                priority=stream.tier,
                tenant=stream.tenant,
                # Contents of two traces are never the same.
                cache_salt=str(stream.trace),
            )
            assert present(runner.add(message, now_ns)).error is None
        outcome = runner.step(now_ns)
        if outcome is not None:
            now_ns += outcome.result.duration_ns
        elif pending:
            now_ns = max(now_ns, pending[0][1].arrival_ns)
    return log


def comparable(plan: StepPlan) -> StepPlan:
    """Without token values and sampling, which a simulation does not have."""
    sampling = SamplingParams()
    new = tuple(replace(n, token_ids=(len(n.token_ids),), sampling=sampling) for n in plan.new)
    return replace(plan, new=new)


def write_trace(path: Path, first_id: int) -> Path:
    """Forty requests in five groups that share prefixes of one to three blocks of 8 tokens; none is like another.

    Equal prompts would get equal answers from the toy model, and the engine would share their pages. A simulation does
    not know answers.
    """
    lines = []
    for number in range(40):
        group, depth = number % 5, number % 3 + 1
        ids = [100 * group + place for place in range(depth)] + [first_id + number]
        row = {
            "timestamp": number // 4 * 9, "input_length": 8 * depth + 1 + number % 7,
            "output_length": 1 + number * 7 % 40, "hash_ids": ids, "block_tokens": 8,
        }  # fmt: skip
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_pages": 30, "max_model_len": 100},
        {"num_pages": 30, "max_model_len": 100, "preemption_mode": "swap", "num_host_pages": 50},
        {"num_pages": 30, "max_model_len": 100, "preemption_mode": "tail", "preemption_policy": "cheapest"},
        {"scheduling_policy": "preemptive", "tenant_order": "fair", "quantum_tokens": 8, "max_equal_wait_ms": 5},
        {"scheduling_policy": "lpm", "admission": "reserve-full"},
        {"batching": "static"},
        {"prefix_caching": False},
    ],
    ids=str,
)
def test_engine_and_simulator_make_the_same_plans(tmp_path: Path, settings: dict[str, Any]) -> None:
    engine = small_engine(latency=ConstantLatency(STEP_NS), **settings)
    streams = (
        Stream(name="a", trace=write_trace(tmp_path / "a.jsonl", 1000), tenant="a"),
        Stream(name="b", trace=write_trace(tmp_path / "b.jsonl", 2000), tenant="b", tier=1, num_requests=15),
    )
    workload = Workload(streams, seed=3)
    log = PlanLog()
    finished = Simulation(engine, workload, jumps=False, observer=log).run()
    plans = run_engine(engine, streams, workload.arrivals())
    assert [comparable(plan) for plan in log.plans] == [comparable(plan) for plan in plans]
    assert len(plans) > 100
    arrived = [record.num_arrived for record in finished.recorder.streams]
    assert arrived == [record.num_finished for record in finished.recorder.streams] == [40, 15]
    if settings.get("prefix_caching", True) and settings.get("batching") != "static":
        assert sum(record.num_cached_tokens for record in finished.recorder.streams) > 100
    if "num_pages" in settings:
        assert sum(record.num_preemptions for record in finished.recorder.streams) > 0
