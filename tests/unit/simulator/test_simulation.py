from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.page_keys import DigestKeyer
from chairlift.core.step_plan import StepPlan
from chairlift.report.statistics import curve, curve_weighted, describe, describe_weighted, jain_index
from chairlift.simulator.content_keys import ContentKeyer
from chairlift.simulator.latency.model import ConstantLatency
from chairlift.simulator.recorder import Recorder
from chairlift.simulator.series import TimeSeries
from chairlift.simulator.simulation import Simulation
from chairlift.simulator.summary import RunSummary, summarize
from chairlift.workload.distributions import Fixed, Uniform
from chairlift.workload.items import ContentRun, WorkRequest, compact_prompt
from chairlift.workload.slo import Slo
from chairlift.workload.streams import Stream, Workload
from tests.simulated import PlanLog, SizedLatency, lengths_workload, small_engine

MS = 1_000_000


def run(workload: Workload, **engine: Any) -> RunSummary:
    built = small_engine(**engine)
    return summarize(Simulation(built, workload).run(), built, workload, label="run", wall_s=0.0)


def test_a_token_costs_a_step_and_utilization_is_exact() -> None:
    workload = lengths_workload(200, 10, 60, 35)
    constant: dict[str, Any] = {"latency": ConstantLatency(MS), "max_num_batched_tokens": 64, "num_pages": 300}
    static = run(workload, batching="static", **constant)
    assert static.slot_utilization == 305 / 800
    assert static.simulated_s == 0.2
    assert static.total.latencies.tpot_ms is not None
    assert static.total.latencies.tpot_ms.maximum == 1.0
    assert run(workload, **constant).num_steps == 200


def test_arrivals_are_seen_between_steps_and_times_count_from_the_arrival() -> None:
    streams = (
        Stream(name="a", output_lengths=(5,)),
        Stream(name="b", output_lengths=(2,), num_requests=1, ramp=(), rate_per_s=1.0),
    )
    finished = Simulation(small_engine(latency=ConstantLatency(100 * MS)), Workload(streams, 4)).run()
    a, b = finished.recorder.streams
    assert list(a.ttft_ns) == [100 * MS]
    assert list(a.e2e_ns) == [500 * MS]
    arrival_ns = next(r.arrival_ns for r in Workload(streams, 4).arrivals() if r.stream == 1)
    if arrival_ns < 500 * MS:
        wait_ns = -arrival_ns % (100 * MS)
        assert list(b.queue_ns) == [wait_ns]
        assert list(b.ttft_ns) == [wait_ns + 100 * MS]


def test_gaps_by_stream_are_what_watching_every_token_gives() -> None:
    """The recorder counts gaps per step; a slow observer that looks at every row must find the same."""
    streams = tuple(
        Stream(
            name=f"s{i}", prompt_tokens=Uniform(1, 60), output_tokens=Uniform(1, 40), num_requests=20, rate_per_s=40.0,
            tier=i,
        )
        for i in range(2)
    )  # fmt: skip
    workload = Workload(streams, 1)
    stream_of = {number: request.stream for number, request in enumerate(workload.arrivals())}
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"num_pages": 30, "max_model_len": 110},
        {"depth": 2},
        {"batching": "static", "num_pages": 200},
    )
    for settings in variants:
        engine = small_engine(**settings)
        log = PlanLog()
        simulation = Simulation(engine, workload, jumps=False, observer=log)
        times: dict[int, list[int]] = defaultdict(list)
        original = simulation._stepper.step

        def watched(now_ns: int, original=original, simulation=simulation, times=times):
            outcome = original(now_ns)
            if outcome is not None:
                for update in outcome.updates:
                    times[update.request_id] += [simulation._clock.now_ns] * len(update.token_ids)
            return outcome

        simulation._stepper.step = watched  # type: ignore[method-assign]
        recorder = simulation.run().recorder
        expected: list[list[int]] = [[], []]
        for request_id, moments in times.items():
            expected[stream_of[request_id]] += [later - earlier for earlier, later in pairwise(moments)]
        for record, gaps in zip(recorder.streams, expected, strict=True):
            found = [g for g, n in zip(record.gap_ns, record.gap_counts, strict=True) for _ in range(n)]
            assert sorted(found) == sorted(gaps), settings
        if "max_model_len" in settings:
            assert sum(record.num_preemptions for record in recorder.streams) > 0
            assert sum(record.num_recomputed_tokens for record in recorder.streams) > 0


def test_a_closed_loop_keeps_so_many_alive_and_conversations_wait_for_answers() -> None:
    loop = Stream(name="x", output_lengths=(3, 9, 4), num_requests=20, concurrency=2)
    log = PlanLog()
    engine = small_engine(latency=ConstantLatency(MS))
    finished = Simulation(engine, Workload((loop,)), jumps=False, observer=log).run()
    assert finished.recorder.streams[0].num_finished == 20
    assert max(plan.num_decodes + len(plan.chunks) for plan in log.plans) == 2


def test_follow_ups_come_after_the_answer_and_find_the_prefix(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "task_id,trial,call,prompt_tokens,output_tokens,new_tokens_since_prev_call,output_is_tool_call\n"
        "0,0,0,120,4,1,0\n0,0,1,160,4,1,0\n"
    )
    stream = Stream(name="t", trace=path, think_s=0.5)
    engine = small_engine(num_pages=200, max_num_batched_tokens=400, latency=ConstantLatency(MS))
    finished = Simulation(engine, Workload((stream,))).run()
    record = finished.recorder.streams[0]
    assert record.num_finished == 2
    assert finished.end_ns == 508 * MS
    assert list(record.ttft_ns) == [MS, MS]
    assert record.num_cached_tokens == 120


def test_requests_that_can_never_fit_are_refused_and_the_rest_goes_on() -> None:
    stream = Stream(name="x", prompt_tokens=Fixed(500), output_lengths=(3,), num_requests=2)
    fine = Stream(name="y", output_lengths=(3,))
    summary = run(Workload((stream, fine)))
    assert [s.num_refused for s in summary.streams] == [2, 0]
    assert [s.num_finished for s in summary.streams] == [0, 1]


def test_what_waits_too_long_ends_and_is_counted() -> None:
    stream = Stream(name="x", output_lengths=(50,) * 8, ttft_deadline_ms=30.0, slo=Slo(20.0, None))
    summary = run(Workload((stream,)), latency=ConstantLatency(MS), scheduling_policy="deadline", queue_timeout_s=None)
    assert summary.streams[0].num_finished == 4
    assert summary.streams[0].ends == {"deadline": 4}
    assert summary.streams[0].slo_attainment == 0.5
    timed = run(lengths_workload(*(50,) * 8), latency=ConstantLatency(MS), queue_timeout_s=0.02)
    assert timed.total.ends == {"timeout": 4}


def test_overheads_lie_between_steps_and_before_requests() -> None:
    facts = SizedLatency.facts

    class Slow(ConstantLatency):
        def __init__(self) -> None:
            super().__init__(10 * MS)
            self.facts = replace(facts, step_overhead_ns=2 * MS, row_overhead_ns=MS, request_overhead_ns=5 * MS)

    finished = Simulation(small_engine(latency=Slow()), lengths_workload(4)).run()
    assert list(finished.recorder.streams[0].ttft_ns) == [5 * MS + 13 * MS]
    assert finished.end_ns == 5 * MS + 4 * 13 * MS


def test_pipelined_steps_overlap_what_lies_between_them() -> None:
    class Slow(ConstantLatency):
        def __init__(self) -> None:
            super().__init__(10 * MS)
            self.facts = replace(SizedLatency.facts, step_overhead_ns=2 * MS)

    ends = [
        Simulation(small_engine(latency=Slow(), depth=depth), lengths_workload(20)).run().end_ns for depth in (1, 2)
    ]
    assert ends == [20 * 12 * MS, 20 * 10 * MS + 2 * MS]


def test_fairness_is_counted_while_everybody_waits() -> None:
    streams = tuple(
        Stream(
            name=name, prompt_tokens=Fixed(20), output_tokens=Fixed(10), num_requests=number, tenant=name, weight=weight
        )
        for name, number, weight in (("a", 60, 2.0), ("b", 30, 1.0))
    )
    fair = run(Workload(streams), tenant_order="fair", scheduling_policy="fcfs")
    assert set(fair.contended_tokens) == {"a", "b"}
    assert all(fair.contended_tokens.values())
    assert fair.jain_index is not None


def test_keys_are_equal_for_equal_prefixes_and_for_nothing_else() -> None:
    keyer = ContentKeyer()
    root = keyer.root(None, None)
    a = compact_prompt(WorkRequest(0, 12, 1, (ContentRun(5, 8), ContentRun(7, 4))))
    b = compact_prompt(WorkRequest(0, 12, 1, (ContentRun(5, 8), ContentRun(8, 4))))
    keys_a, keys_b = keyer.extend(root, a, 4), keyer.extend(root, b, 4)
    assert keys_a[:2] == keys_b[:2]
    assert keys_a[2] != keys_b[2]
    assert len({*keys_a, *keys_b}) == 4
    assert keyer.extend(keys_a[0], a[4:], 4) == keys_a[1:]
    # A page across the end of a run belongs to what comes after it.
    assert keyer.extend(root, a, 12)[0] != keyer.extend(root, b, 12)[0]
    assert not {*keyer.extend(keyer.root("salt", None), a, 4)} & {*keys_a}
    alone = [keyer.extend(root, bytearray(16), 4) for _ in range(2)]
    assert len({key for keys in alone for key in keys}) == 8
    a.append(0)
    a.extend([0] * 3)
    outputs = [keyer.extend(keys_a[2], a[12:], 4), keyer.extend(keys_a[2], a[12:], 4)]
    assert outputs[0] != outputs[1]


def test_another_keyer_may_name_the_pages() -> None:
    plans: list[list[StepPlan]] = []
    stream = Stream(name="x", prompt_tokens=Fixed(8), output_lengths=(5,), num_requests=6)
    for keyer in (None, DigestKeyer()):
        log = PlanLog()
        Simulation(small_engine(), Workload((stream,)), observer=log, keyer=keyer).run()
        plans.append(log.plans)
    # To the digests all simulated prompts are alike, so these share what content ids keep apart.
    assert plans[0] != plans[1]


def test_series_stay_bounded_and_keep_their_integral() -> None:
    series = TimeSeries(2)
    end = 0
    total = 0.0
    for number in range(5000):
        step = 1 + number * 7919 % 5_000_000
        series.add(end, end + step, (number, 1.0))
        total += step * number
        end += step
    points = series.points()
    assert 400 < len(points) <= 1024
    width_s = points[1].at_s - points[0].at_s
    assert sum(p.means[0] for p in points[:-1]) * width_s == pytest.approx(total / 1e9, rel=0.01)
    assert all(p.means[1] == pytest.approx(1.0) for p in points)


def test_percentiles_are_values_that_occurred() -> None:
    found = describe(range(1, 101))
    assert found is not None
    assert found.percentiles == (50, 90, 95, 99)
    assert (found.count, found.mean, found.maximum) == (100, 50.5, 100)
    assert found.to_json()["p99"] == 99
    assert describe([]) is None
    assert describe_weighted([], []) is None
    weighted = describe_weighted([5.0, 1.0, 3.0], [1, 98, 1])
    assert weighted is not None
    assert weighted.percentiles == (1.0, 1.0, 1.0, 3.0)
    assert weighted == describe([1.0] * 98 + [3.0, 5.0])
    assert curve_weighted([5.0, 1.0, 3.0], [1, 98, 1]) == curve([1.0] * 98 + [3.0, 5.0])
    assert jain_index([1, 1]) == 1.0
    assert jain_index([1, 0]) == 0.5
    assert jain_index([0, 0]) is None


def test_a_recorder_that_saw_nothing_has_nothing_to_say() -> None:
    recorder = Recorder(1)
    assert recorder.num_steps == 0
    assert recorder.series.points() == []
