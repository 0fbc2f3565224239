import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chairlift.core.logged_scheduler import LoggedScheduler
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.stepper import Stepper
from chairlift.errors import ConfigurationError
from chairlift.execution.fake import FakeExecutor
from chairlift.simulator.simulation import Simulation
from chairlift.workload.streams import Stream, Workload
from chairlift.workload.traces import open_trace
from chairlift.workload.traces.reading import Lap
from tests.simulated import PlanLog, small_engine

STEP_NS = 1_000_000


def serve(path: Path, *, depth: int = 1, num_pages: int = 64) -> dict[int, tuple[int, int, int]]:
    """Serve some requests, logged to the file, and return arrival, prompt and output tokens of each by its id."""
    engine = small_engine(num_pages=num_pages, max_model_len=100)
    lines: list[dict[str, Any]] = []
    scheduler = LoggedScheduler(engine.scheduler, engine.cache, write=lines.append)
    stepper = Stepper(scheduler, FakeExecutor(num_pages, 4, vocab_size=40, step_duration_ns=STEP_NS), depth)
    arrived: dict[int, tuple[int, int]] = {}
    tokens: dict[int, int] = {}
    now_ns = number = 0
    while number < 14 or scheduler.has_unfinished:
        if number < 14 and now_ns >= number * 4 * STEP_NS:
            prompt = [(number * 31 + place * 7) % 40 for place in range(3 + number * 5 % 30)]
            sampling = SamplingParams(temperature=0.0, max_tokens=5 + number % 25)
            stop = frozenset([7]) if number % 3 == 0 else frozenset[int]()
            request = Request(
                number, prompt, sampling, stop_token_ids=stop, priority=number % 2, tenant=f"t{number % 2}"
            )
            scheduler.add(request, 1000 + now_ns)
            arrived[number] = (now_ns, len(prompt))
            number += 1
        outcome = stepper.step(1000 + now_ns)
        now_ns += STEP_NS
        for update in outcome.updates if outcome else ():
            tokens[update.request_id] = tokens.get(update.request_id, 0) + len(update.token_ids)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {request_id: (*arrived[request_id], count) for request_id, count in tokens.items()}


@pytest.mark.parametrize("num_pages", [64, 26])
def test_a_log_gives_back_what_was_served(tmp_path: Path, num_pages: int) -> None:
    path = tmp_path / "log.jsonl"
    served = serve(path, num_pages=num_pages)
    assert '"kind": "start"' in path.read_text()
    assert len({output for *_, output in served.values()}) > 4
    trace = open_trace(path)
    assert trace.has_arrivals
    found = list(trace.requests(Lap(Random(1))))
    assert [(r.arrival_ns, r.num_prompt_tokens, r.num_output_tokens) for r in found] == sorted(served.values())
    assert {(r.tier, r.tenant) for r in found} == {(0, "t0"), (1, "t1")}


def test_a_log_is_served_again_with_its_tiers_and_tenants(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    served = serve(path)
    log = PlanLog()
    workload = Workload((Stream(name="log", trace=path),))
    simulation = Simulation(small_engine(), workload, observer=log)
    record = simulation.run().recorder.streams[0]
    assert record.num_finished == len(served)
    assert record.num_output_tokens == sum(output for *_, output in served.values())
    simulation = Simulation(small_engine(), workload.without_tiers())
    assert {simulation._make_request(work, workload.streams[0], 0).priority for work in workload.arrivals()} == {0}


def test_a_log_that_ends_in_the_middle_of_a_line_counts_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    serve(path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert 0 < len(list(open_trace(path).requests(Lap(Random(1))))) < 14
    path.write_text(text[: text.index("\n") + 1])
    with pytest.raises(ConfigurationError, match="no request that got a token"):
        list(open_trace(path).requests(Lap(Random(1))))
