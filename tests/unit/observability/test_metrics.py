"""Metrics: the table, and what the recorder makes of requests, steps and dying engines."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.observability.metrics import METRICS, Metrics
from chairlift.observability.recorder import Recorder
from chairlift.observability.step_stats import NO_SCHEDULER, StepStats

BUSY = replace(
    NO_SCHEDULER,
    num_running=3,
    num_waiting=5,
    num_pages=10,
    num_leased_pages=4,
    num_cached_pages=2,
    preemptions_total=2,
    prefix_query_tokens_total=100,
    prefix_hit_tokens_total=32,
    prompt_tokens_total=90,
    generation_tokens_total=7,
)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Metrics())


def values(recorder: Recorder) -> dict[str, float]:
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(recorder.metrics.render().decode()):
        for sample in family.samples:
            labels = "".join(f"{{{value}}}" for value in sample.labels.values())
            samples[sample.name.removeprefix("chairlift_") + labels] = sample.value
    return samples


def test_every_metric_of_the_table_is_exported_under_its_name() -> None:
    text = Metrics().render().decode()
    for metric in METRICS:
        family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        assert f"# TYPE {metric.name} {metric.kind}" in text or f"# TYPE {family} {metric.kind}" in text
        assert metric.name.startswith("chairlift_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind == "histogram")


def test_two_engines_in_one_process_do_not_share_a_registry() -> None:
    first, second = Recorder(Metrics()), Recorder(Metrics())
    first.received(2)
    assert values(first)["requests_received_total"] == 2
    assert values(second)["requests_received_total"] == 0


def test_step_sets_gauges_and_moves_counters_by_the_difference(recorder: Recorder) -> None:
    recorder.engine_ready(is_restart=False)
    recorder.step(StepStats(scheduler=BUSY, num_steps=1, duration_ns=20_000_000, num_prefill_tokens=60,
                            num_decode_tokens=3, num_padding_tokens=4, num_wasted_rows=1,
                            queue_times_ns=(1_000_000_000,)))  # fmt: skip
    later = replace(BUSY, num_running=1, preemptions_total=3, generation_tokens_total=10)
    recorder.step(StepStats(scheduler=later))
    got = values(recorder)
    assert got["num_requests_running"] == 1
    assert got["num_requests_waiting"] == 5
    assert got["kv_cache_usage_ratio"] == 0.4
    assert got["kv_cache_cached_ratio"] == 0.2
    assert got["num_preemptions_total"] == 3
    assert got["generation_tokens_total"] == 10
    assert got["prefix_cache_hits_tokens_total"] == 32
    assert got["step_duration_seconds_count"] == 1
    assert got["step_tokens_sum"] == 63
    assert got["padding_tokens_total"] == 4
    assert got["wasted_rows_total"] == 1
    assert got["request_queue_time_seconds_sum"] == 1


def test_dead_engine_leaves_no_gauge_behind_and_counters_survive_its_restart(recorder: Recorder) -> None:
    recorder.engine_ready(is_restart=False)
    recorder.step(StepStats(scheduler=BUSY))
    recorder.engine_down()
    got = values(recorder)
    assert [got[name] for name in ("engine_up", "num_requests_running", "num_requests_waiting")] == [0, 0, 0]
    assert got["kv_cache_usage_ratio"] == got["kv_cache_cached_ratio"] == 0
    recorder.engine_ready(is_restart=True)
    recorder.step(StepStats(scheduler=replace(BUSY, generation_tokens_total=5)))
    got = values(recorder)
    assert got["generation_tokens_total"] == 7 + 5
    assert got["engine_restarts_total"] == 1
    assert got["engine_up"] == 1


def test_tokens_that_come_together_share_the_pause_before_them(recorder: Recorder) -> None:
    recorder.first_token(0.2)
    recorder.next_tokens(0.5, 5)
    got = values(recorder)
    assert got["time_to_first_token_seconds_count"] == 1
    assert got["inter_token_latency_seconds_count"] == 5
    assert got["inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert got["inter_token_latency_seconds_bucket{0.1}"] == 5


def test_each_request_ends_with_one_reason_and_only_whole_ones_have_a_latency(recorder: Recorder) -> None:
    recorder.received(4)
    recorder.finished("stop", 1.0)
    recorder.finished("abort")
    recorder.finished("rejected", num_choices=2)
    got = values(recorder)
    assert sum(value for name, value in got.items() if name.startswith("requests_finished_total{")) == 4
    assert got["e2e_request_latency_seconds_count"] == 1
