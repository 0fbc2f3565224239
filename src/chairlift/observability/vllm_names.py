"""The metrics once more under vLLM's names, so that dashboards made for it go on working.

Knows nothing of who counts. Values are those of :mod:`chairlift.observability.metrics`, read when they are scraped.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from chairlift.observability.metrics import Metrics


class VllmName(NamedTuple):
    """A series of ours under another name. ``labels`` renames labels; ``values`` renames, or drops, values of them."""

    name: str
    kind: str
    ours: str
    labels: Mapping[str, str] = {}
    values: Mapping[str, str] | None = None


_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "error": "error"}

NAMES: tuple[VllmName, ...] = (
    VllmName("vllm:num_requests_running", "gauge", "num_requests_running"),
    VllmName("vllm:num_requests_waiting", "gauge", "num_requests_waiting"),
    VllmName("vllm:kv_cache_usage_perc", "gauge", "kv_cache_usage_ratio"),
    VllmName("vllm:num_preemptions", "counter", "num_preemptions_total"),
    VllmName("vllm:prompt_tokens", "counter", "prompt_tokens_total"),
    VllmName("vllm:generation_tokens", "counter", "generation_tokens_total"),
    VllmName("vllm:prompt_tokens_cached", "counter", "prefix_cache_hits_tokens_total"),
    VllmName("vllm:prefix_cache_queries", "counter", "prefix_cache_queries_tokens_total"),
    VllmName("vllm:prefix_cache_hits", "counter", "prefix_cache_hits_tokens_total"),
    VllmName("vllm:request_success", "counter", "requests_finished_total", {"reason": "finished_reason"}, _REASONS),
    VllmName("vllm:time_to_first_token_seconds", "histogram", "time_to_first_token_seconds"),
    VllmName("vllm:inter_token_latency_seconds", "histogram", "inter_token_latency_seconds"),
    VllmName("vllm:request_time_per_output_token_seconds", "histogram", "request_time_per_output_token_seconds"),
    VllmName("vllm:e2e_request_latency_seconds", "histogram", "e2e_request_latency_seconds"),
    VllmName("vllm:request_queue_time_seconds", "histogram", "request_queue_time_seconds"),
    VllmName("vllm:request_inference_time_seconds", "histogram", "request_inference_time_seconds"),
    VllmName("vllm:request_prefill_time_seconds", "histogram", "request_prefill_time_seconds"),
    VllmName("vllm:request_decode_time_seconds", "histogram", "request_decode_time_seconds"),
    VllmName("vllm:request_prefill_kv_computed_tokens", "histogram", "request_computed_prompt_tokens"),
    VllmName("vllm:request_prompt_tokens", "histogram", "request_prompt_tokens"),
    VllmName("vllm:request_generation_tokens", "histogram", "request_generation_tokens"),
    VllmName("vllm:request_params_n", "histogram", "request_choices"),
    VllmName("vllm:request_params_max_tokens", "histogram", "request_max_tokens"),
    VllmName("vllm:iteration_tokens_total", "histogram", "step_tokens"),
)
"""Series that mean the same here and there."""

DEFERRED = frozenset({"grammar", "swap_in", "prefix", "quota", "group"})
"""What a waiting request may lack beside capacity."""


class _ServedModel(Protocol):
    """What is served, for labels."""

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        ...

    @property
    def page_size(self) -> int:
        """Token slots of a KV page."""
        ...

    @property
    def num_pages(self) -> int:
        """KV pages in all."""
        ...


class VllmMetrics(Collector):
    """Yields the series under vLLM's names, each with the labels ``model_name`` and ``engine``.

    Args:
        metrics: ours.
        facts: says what is served, ``None`` while nothing is.
    """

    def __init__(self, metrics: Metrics, facts: Callable[[], _ServedModel | None]) -> None:
        self._metrics, self._facts = metrics, facts

    def collect(self) -> Iterator[Metric]:
        """Yield all series for a scrape."""
        facts = self._facts()
        if facts is None:
            return
        labels = {"model_name": facts.name, "engine": "0"}
        for row in NAMES:
            yield self._renamed(row, labels)
        yield from self._derived(facts, labels)

    def _renamed(self, row: VllmName, labels: dict[str, str]) -> Metric:
        source = next(iter(self._family(row.ours, row.kind).collect()))
        family = Metric(row.name, source.documentation, row.kind)
        for sample in source.samples:
            own = {row.labels.get(label, label): value for label, value in sample.labels.items()}
            if row.values is not None:
                renamed = next(iter(row.labels.values()))
                if own[renamed] not in row.values:
                    continue
                own[renamed] = row.values[own[renamed]]
            suffix = sample.name.removeprefix(source.name)
            family.samples.append(Sample(row.name + suffix, {**labels, **own}, sample.value))
        return family

    def _derived(self, facts: _ServedModel, labels: dict[str, str]) -> Iterator[Metric]:
        metrics = self._metrics
        prompt, hits, computed_again = (
            self._total(name)
            for name in ("prompt_tokens_total", "prefix_cache_hits_tokens_total", "recomputed_tokens_total")
        )
        by_source = Metric("vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "counter")
        for source, value in (("local_compute", max(0.0, prompt - hits)), ("local_cache_hit", hits)):
            by_source.add_sample("vllm:prompt_tokens_by_source_total", {**labels, "source": source}, value)
        yield by_source
        recomputed = Metric("vllm:prompt_tokens_recomputed", "Tokens computed once more.", "counter")
        recomputed.add_sample("vllm:prompt_tokens_recomputed_total", labels, computed_again)
        yield recomputed
        rejections = Metric("vllm:admission_rejections", "Requests that were refused.", "counter")
        refused = metrics.counter("requests_finished_total").labels("rejected").value
        rejections.add_sample("vllm:admission_rejections_total", labels, refused)
        yield rejections
        waiting = Metric("vllm:num_requests_waiting_by_reason", "Waiting requests by what they lack.", "gauge")
        deferred = capacity = 0.0
        for sample in next(iter(metrics.gauge("num_requests_waiting_by_reason").collect())).samples:
            is_deferred = sample.labels["reason"] in DEFERRED
            deferred, capacity = deferred + sample.value * is_deferred, capacity + sample.value * (not is_deferred)
        waiting.add_sample(waiting.name, {**labels, "reason": "capacity"}, capacity)
        waiting.add_sample(waiting.name, {**labels, "reason": "deferred"}, deferred)
        yield waiting
        sleep = Metric("vllm:engine_sleep_state", "This engine never sleeps.", "gauge")
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep.add_sample(sleep.name, {**labels, "sleep_state": state}, float(state == "awake"))
        yield sleep
        info = {"block_size": str(facts.page_size), "num_gpu_blocks": str(facts.num_pages), **labels}
        config = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=tuple(info))
        config.add_metric(tuple(info.values()), 1.0)
        yield config

    def _family(self, name: str, kind: str) -> Any:
        find: dict[str, Callable[[str], Any]] = {
            "gauge": self._metrics.gauge,
            "counter": self._metrics.counter,
            "histogram": self._metrics.histogram,
        }
        return find[kind](name)

    def _total(self, name: str) -> float:
        return sum(sample.value for family in self._metrics.counter(name).collect() for sample in family.samples)
