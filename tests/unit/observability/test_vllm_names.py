"""Names, labels and buckets are those that vLLM's dashboards ask for."""

from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from chairlift.observability.accounts import Objectives
from chairlift.observability.metrics import Metrics
from chairlift.observability.recorder import Recorder
from chairlift.observability.vllm_names import VllmMetrics

MS = 1_000_000

GAUGES = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("engine_sleep_state", "cache_config_info"),
}
COUNTERS = {
    *("num_preemptions", "prompt_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "generation_tokens"),
    *("prompt_tokens_recomputed", "request_success", "prefix_cache_queries", "prefix_cache_hits"),
    "admission_rejections",
}
HISTOGRAMS = {
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prefill_kv_computed_tokens"),
    *("request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens"),
    "iteration_tokens_total",
}


class Model(NamedTuple):
    name: str = "toy"
    page_size: int = 16
    num_pages: int = 100


def scrape(recorder: Recorder) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Value by series name and its labels, those that all have left out."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(recorder.metrics.render().decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                labels = dict(sample.labels)
                assert (labels.pop("model_name"), labels.pop("engine")) == ("toy", "0")
                found.setdefault(sample.name.removeprefix("vllm:"), {})[tuple(sorted(labels.items()))] = sample.value
    return found


def recorder_with_names() -> Recorder:
    recorder = Recorder(Metrics())
    recorder.metrics.registry.register(VllmMetrics(recorder.metrics, Model))
    return recorder


def test_every_name_is_there() -> None:
    found = set(scrape(recorder_with_names()))
    assert found >= GAUGES
    assert found >= {f"{name}_total" for name in COUNTERS}
    for part in ("_bucket", "_sum", "_count"):
        assert found >= {name + part for name in HISTOGRAMS}
    known = (
        GAUGES | {f"{n}_total" for n in COUNTERS} | {n + p for n in HISTOGRAMS for p in ("_bucket", "_sum", "_count")}
    )
    assert found == known


def test_values_are_ours() -> None:
    recorder = recorder_with_names()
    record = recorder.request(0, "", Objectives(), num_prompt_tokens=100, num_choices=1, arrival_ns=0)
    record.asked_for(12)
    record.admitted(1, 20 * MS)
    record.tokens(1, 1, 50 * MS, num_cached_tokens=64)
    record.tokens(1, 1, 70 * MS)
    record.ended(1, "length", 70 * MS)
    refused = recorder.request(0, "", Objectives(), num_prompt_tokens=1, num_choices=1, arrival_ns=0)
    refused.refused(is_missed=False)
    found = scrape(recorder)
    once = {
        "time_to_first_token_seconds": 0.05,
        "request_prefill_time_seconds": 0.03,
        "request_decode_time_seconds": 0.02,
        "request_inference_time_seconds": 0.05,
        "request_time_per_output_token_seconds": 0.02,
        "e2e_request_latency_seconds": 0.07,
        "request_prompt_tokens": 100,
        "request_prefill_kv_computed_tokens": 36,
        "request_generation_tokens": 2,
        "request_params_max_tokens": 12,
    }
    for name, value in once.items():
        assert found[f"{name}_count"][()] == 1
        assert abs(found[f"{name}_sum"][()] - value) < 1e-9
    assert found["request_success_total"] == {
        (("finished_reason", reason),): float(reason == "length") for reason in ("stop", "length", "abort", "error")
    }
    assert found["admission_rejections_total"][()] == 1
    assert found["cache_config_info"] == {(("block_size", "16"), ("num_gpu_blocks", "100")): 1.0}


def test_nothing_is_said_while_nothing_is_served() -> None:
    recorder = Recorder(Metrics())
    recorder.metrics.registry.register(VllmMetrics(recorder.metrics, lambda: None))
    assert scrape(recorder) == {}
