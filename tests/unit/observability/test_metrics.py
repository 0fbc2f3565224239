"""Metrics: the table, and what the recorder makes of requests, steps and dying engines."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.config.resolved import TenantConfig, TenantTable
from chairlift.observability.accounts import Objectives
from chairlift.observability.metrics import MAX_OTHER_TENANTS, MAX_OTHER_TIERS, METRICS, Metrics
from chairlift.observability.recorder import Recorder
from chairlift.observability.request_record import RequestRecord
from chairlift.observability.step_stats import NO_SCHEDULER, PreemptionNote, ResumeNote, StepStats

MS = 1_000_000

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
    num_host_pages=20,
    num_free_host_pages=15,
)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Metrics())


def request(recorder: Recorder, **given: Any) -> RequestRecord:
    arguments = {"tier": 0, "tenant": "", "objectives": Objectives(), **given}
    numbers = {"num_prompt_tokens": 10, "num_choices": 1, "arrival_ns": 0}
    return recorder.request(**{**numbers, **arguments})


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
    request(first, num_choices=2)
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
    assert got["swap_space_usage_ratio"] == 0.25
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
    assert got["kv_cache_usage_ratio"] == got["kv_cache_cached_ratio"] == got["swap_space_usage_ratio"] == 0
    recorder.engine_ready(is_restart=True)
    recorder.step(StepStats(scheduler=replace(BUSY, generation_tokens_total=5)))
    got = values(recorder)
    assert got["generation_tokens_total"] == 7 + 5
    assert got["engine_restarts_total"] == 1
    assert got["engine_up"] == 1


def test_tokens_that_come_together_share_the_pause_before_them(recorder: Recorder) -> None:
    record = request(recorder)
    record.tokens(0, 1, 200 * MS)
    record.tokens(0, 5, 700 * MS)
    got = values(recorder)
    assert got["time_to_first_token_seconds_count"] == 1
    assert got["time_to_first_token_seconds_sum"] == pytest.approx(0.2)
    assert got["inter_token_latency_seconds_count"] == 5
    assert got["inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert got["inter_token_latency_seconds_bucket{0.1}"] == 5
    assert got["inter_token_latency_seconds_bucket{0.075}"] == 0
    assert got["tenant_inter_token_latency_seconds_count{default}{0}"] == 5
    assert got["tenant_generation_tokens_total{default}{0}"] == 6
    assert got["tenant_prompt_tokens_total{default}{0}"] == 10


def test_each_request_ends_with_one_reason_and_only_whole_ones_have_a_latency(recorder: Recorder) -> None:
    record = request(recorder, num_choices=2)
    record.tokens(0, 1, 100 * MS)
    record.ended(0, "stop", 1000 * MS)
    record.ended(1, "abort", 1000 * MS)
    request(recorder, num_choices=2).refused(is_missed=True)
    got = values(recorder)
    assert sum(value for name, value in got.items() if name.startswith("requests_finished_total{")) == 4
    assert got["requests_finished_total{rejected}"] == got["tenant_requests_finished_total{rejected}{default}{0}"] == 2
    assert got["e2e_request_latency_seconds_count"] == 1


@pytest.mark.parametrize(
    ("reason", "first_ms", "end_ms", "met", "missed", "good"),
    [
        ("stop", 100, 900, 1, 0, 1),
        ("length", 101, 900, 0, 1, 0),  # the first token came too late
        ("stop", 100, 1001, 0, 1, 0),  # the last one did
        ("deadline", 50, 1000, 0, 1, 0),
        ("error", 50, 100, 0, 1, 0),
        ("abort", 50, 100, 0, 0, 0),  # the client left: nobody missed anything
    ],
)
def test_objectives_are_met_only_by_a_good_end_in_time(
    recorder: Recorder, reason: str, first_ms: int, end_ms: int, met: int, missed: int, good: int
) -> None:
    record = request(recorder, objectives=Objectives(ttft_s=0.1, total_s=1.0), tier=-1, tenant="a")
    record.tokens(0, 3, first_ms * MS)
    record.ended(0, reason, end_ms * MS)
    got = values(recorder)
    assert got.get("slo_requests_total{met}{a}{-1}", 0) == met
    assert got.get("slo_requests_total{missed}{a}{-1}", 0) == missed
    assert got["goodput_requests_total{a}{-1}"] == good
    assert got["goodput_tokens_total{a}{-1}"] == 3 * good


def test_without_an_objective_every_good_end_is_goodput_and_nothing_is_attained(recorder: Recorder) -> None:
    record = request(recorder)
    record.tokens(0, 4, 10**6 * MS)
    record.ended(0, "length", 10**6 * MS)
    got = values(recorder)
    assert got["goodput_tokens_total{default}{0}"] == 4
    assert not any(name.startswith("slo_requests_total") for name in got)


def test_a_refusal_for_overload_misses_and_one_of_a_wrong_request_does_not(recorder: Recorder) -> None:
    request(recorder, objectives=Objectives(ttft_s=1.0)).refused(is_missed=True)
    request(recorder, objectives=Objectives(ttft_s=1.0)).refused(is_missed=False)
    assert values(recorder)["slo_requests_total{missed}{default}{0}"] == 1


def test_preemptions_are_counted_where_the_victim_belongs_even_if_it_has_ended(recorder: Recorder) -> None:
    victim = request(recorder, tier=2, tenant="batch")
    victim.ended(0, "abort", 0)
    gave_way = (PreemptionNote(2, "batch", "urgency", "swap", 5), PreemptionNote(2, "batch", "pages", "recompute", 0))
    recorder.step(StepStats(scheduler=BUSY, preemptions=gave_way, resumes=(ResumeNote(2, "batch", 7, 5),)))
    got = values(recorder)
    assert got["preemptions_by_cause_total{urgency}{swap}{batch}{2}"] == 1
    assert got["preemptions_by_cause_total{pages}{recompute}{batch}{2}"] == 1
    assert got["recomputed_tokens_total{batch}{2}"] == 7
    assert got["swapped_pages_total{out}{batch}{2}"] == got["swapped_pages_total{in}{batch}{2}"] == 5


def test_names_that_clients_choose_cannot_multiply_the_series() -> None:
    tenants = TenantTable(by_name={"paying": TenantConfig(most_urgent_tier=-3)})
    recorder = Recorder(Metrics(), tenants)
    for number in range(1000):
        request(recorder, tier=number, tenant=f"user-{number}")
    request(recorder, tier=-3, tenant="paying").refused(is_missed=True)
    labels = {name for name in values(recorder) if name.startswith("tenant_time_to_first_token_seconds_count")}
    tenant_labels = {name.split("{")[1] for name in labels}
    tier_labels = {name.split("{")[2] for name in labels}
    assert len(tenant_labels) == MAX_OTHER_TENANTS + 2  # the configured one, and "other"
    assert len(tier_labels) == MAX_OTHER_TIERS + 3  # 0 of the first request, -3, and "other"
    assert {"paying}", "other}"} <= tenant_labels
    assert "tenant_requests_finished_total{rejected}{paying}{-3}" in values(recorder)


def test_a_name_nobody_uses_any_more_makes_room_and_its_series_end() -> None:
    recorder = Recorder(Metrics())
    for number in range(MAX_OTHER_TENANTS):
        request(recorder, tenant=f"old-{number}").refused(is_missed=False)
    request(recorder, tenant="new", arrival_ns=500_000 * MS).refused(is_missed=False)
    assert "tenant_requests_finished_total{rejected}{new}{0}" not in values(recorder)
    request(recorder, tenant="new", arrival_ns=601_000 * MS).refused(is_missed=False)
    got = values(recorder)
    assert got["tenant_requests_finished_total{rejected}{new}{0}"] == 1
    assert not any("{old-0}" in name for name in got)
    assert got["tenant_requests_finished_total{rejected}{old-1}{0}"] == 1


def test_a_name_with_unfinished_requests_keeps_its_series() -> None:
    recorder = Recorder(Metrics())
    for number in range(MAX_OTHER_TENANTS):
        request(recorder, tenant=f"busy-{number}")
    request(recorder, tenant="new", arrival_ns=10**7 * MS)
    got = values(recorder)
    assert "tenant_generation_tokens_total{busy-0}{0}" in got
    assert "tenant_generation_tokens_total{new}{0}" not in got


def test_waiting_by_reason_is_set_when_it_is_reported(recorder: Recorder) -> None:
    recorder.step(StepStats(scheduler=BUSY, waiting_by_reason={"pages": 3}))
    recorder.step(StepStats(scheduler=BUSY))
    got = values(recorder)
    assert got["num_requests_waiting_by_reason{pages}"] == 3
    assert got["num_requests_waiting_by_reason{slots}"] == 0
    recorder.engine_down()
    assert values(recorder)["num_requests_waiting_by_reason{pages}"] == 0


def test_jain_index_compares_what_tenants_with_work_got_for_their_weight() -> None:
    tenants = TenantTable(by_name={"a": TenantConfig(weight=2.0), "b": TenantConfig(), "seldom": TenantConfig()})
    recorder = Recorder(Metrics(), tenants)
    records = {name: request(recorder, tenant=name) for name in ("a", "b", "seldom")}
    for second in range(20):
        now_ns = second * 1000 * MS
        records["a"].tokens(0, 20, now_ns)
        records["b"].tokens(0, 10, now_ns)
        recorder.compare_service(now_ns)
        if second == 1:
            records["seldom"].ended(0, "abort", now_ns)
    assert values(recorder)["fairness_jain_ratio"] == pytest.approx(1.0)
    newcomer = request(recorder, tenant="c")
    for second in range(20, 200):
        records["a"].tokens(0, 100, second * 1000 * MS)
        newcomer.tokens(0, 50 if second > 150 else 1, second * 1000 * MS)
        recorder.compare_service(second * 1000 * MS)
        if second == 28:  # the newcomer is too new, and what was level until second 20 is not any more
            assert values(recorder)["fairness_jain_ratio"] == pytest.approx(0.77, abs=0.02)
    # b gets nothing, and c as much as a for its weight since second 151, but not in all of the last minute.
    shares = [59 * 50, 0, 10 * 1 + 49 * 50]
    expected = sum(shares) ** 2 / (3 * sum(share**2 for share in shares))
    assert values(recorder)["fairness_jain_ratio"] == pytest.approx(expected, rel=0.02)
