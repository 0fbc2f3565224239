"""Every metric of Chairlift, in one table: name, kind, unit, help, labels and buckets.

Knows nothing of who counts: :mod:`chairlift.observability.recorder` does.

A request for ``n`` choices counts ``n`` times everywhere, because each choice takes its own slot; so at any time
received = finished (all reasons) + running + waiting.

Series by tier and tenant are bounded: configured tenants have their own label, :data:`MAX_OTHER_TENANTS` others too
while they are in use, and the rest share ``other``; the nameless are ``default``. Tiers likewise.
"""

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from chairlift.observability.cells import CounterFamily, HistogramFamily

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

_REQUEST_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)

FINISH_REASONS = ("stop", "length", "abort", "error", "rejected", "deadline", "timeout")
"""Values of the label ``reason``: each request ends with exactly one of them."""

MAX_OTHER_TENANTS = 20
"""Tenants that the tenants file does not name, as from ``user`` or a header, with a label of their own at most."""
MAX_OTHER_TIERS = 8
"""Tiers with a label of their own at most, beside 0 and the most urgent one of each configured tenant."""

PER_TENANT = ("tier", "tenant")
"""First labels of every metric that is kept by tier and tenant."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. ``name`` is what a scrape shows, with the unit at its end where Prometheus wants it."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("chairlift_num_requests_running", "gauge", "requests", "Requests that hold a slot."),
    Metric("chairlift_num_requests_waiting", "gauge", "requests", "Requests that wait for a slot or for pages."),
    Metric("chairlift_kv_cache_usage_ratio", "gauge", "ratio", "KV pages in use by requests, as a part of all pages."),
    Metric(
        "chairlift_kv_cache_cached_ratio",
        "gauge",
        "ratio",
        "KV pages that hold a reusable prefix and are in use by nobody, as a part of all pages.",
    ),
    Metric("chairlift_swap_space_usage_ratio", "gauge", "ratio", "Pages of --swap-space in use, as a part of all."),
    Metric(
        "chairlift_prefix_cache_queries_tokens_total",
        "counter",
        "tokens",
        "Prompt tokens looked up in the prefix cache, once per request.",
    ),
    Metric(
        "chairlift_prefix_cache_hits_tokens_total",
        "counter",
        "tokens",
        "Prompt tokens found there; a preempted request that finds its own pages again does not count.",
    ),
    Metric(
        "chairlift_num_requests_waiting_by_reason",
        "gauge",
        "requests",
        "Requests that wait, by what they lacked when the scheduler last looked.",
        labels=("reason",),
    ),
    Metric("chairlift_num_preemptions_total", "counter", "preemptions", "Times a request lost its KV pages."),
    Metric(
        "chairlift_preemptions_by_cause_total",
        "counter",
        "preemptions",
        "Times a request gave way, by tier and tenant of the victim, by cause (pages, slots, urgency, quantum, quota), "
        "and by what became of its KV (recompute, swap, tail).",
        labels=(*PER_TENANT, "cause", "mode"),
    ),
    Metric(
        "chairlift_recomputed_tokens_total",
        "counter",
        "tokens",
        "Tokens that had to be computed once more after a preemption: work that was wasted.",
        labels=PER_TENANT,
    ),
    Metric(
        "chairlift_swapped_pages_total",
        "counter",
        "pages",
        "KV pages copied between device and host memory for preempted requests, by direction (out, in).",
        labels=(*PER_TENANT, "direction"),
    ),
    Metric("chairlift_prompt_tokens_total", "counter", "tokens", "Prompt tokens of started requests, cached included."),
    Metric("chairlift_generation_tokens_total", "counter", "tokens", "Tokens generated."),
    Metric("chairlift_embeddings_total", "counter", "vectors", "Vectors made of prompts instead of tokens."),
    Metric(
        "chairlift_time_to_first_token_seconds",
        "histogram",
        "seconds",
        "From arrival to the first token, or to the vector of an embedding.",
        buckets=_FIRST_TOKEN_S,
    ),
    Metric(
        "chairlift_inter_token_latency_seconds",
        "histogram",
        "seconds",
        "From each token of a request to its next one, pauses by preemption included.",
        buckets=_INTER_TOKEN_S,
    ),
    Metric(
        "chairlift_e2e_request_latency_seconds",
        "histogram",
        "seconds",
        "From arrival to the last token of a request that ended with stop or length.",
        buckets=_REQUEST_S,
    ),
    Metric(
        "chairlift_request_queue_time_seconds",
        "histogram",
        "seconds",
        "From arrival in the engine to the first slot, once per request.",
        buckets=_REQUEST_S,
    ),
    Metric(
        "chairlift_request_prefill_time_seconds",
        "histogram",
        "seconds",
        "From the first slot to the first token, once per request.",
        buckets=_REQUEST_S,
    ),
    Metric(
        "chairlift_request_decode_time_seconds",
        "histogram",
        "seconds",
        "From the first token to the last one, once per request.",
        buckets=_REQUEST_S,
    ),
    Metric(
        "chairlift_request_inference_time_seconds",
        "histogram",
        "seconds",
        "From the first slot to the last token, once per request.",
        buckets=_REQUEST_S,
    ),
    Metric(
        "chairlift_request_time_per_output_token_seconds",
        "histogram",
        "seconds",
        "Mean time per output token after the first, once per request.",
        buckets=_INTER_TOKEN_S,
    ),
    Metric(
        "chairlift_request_prompt_tokens",
        "histogram",
        "tokens",
        "Prompt tokens of each request that ended with stop or length.",
        buckets=_REQUEST_TOKENS,
    ),
    Metric(
        "chairlift_request_computed_prompt_tokens",
        "histogram",
        "tokens",
        "Those of them that were not found in the prefix cache.",
        buckets=_REQUEST_TOKENS,
    ),
    Metric(
        "chairlift_request_generation_tokens",
        "histogram",
        "tokens",
        "Output tokens of each request that ended with stop or length.",
        buckets=_REQUEST_TOKENS,
    ),
    Metric(
        "chairlift_request_max_tokens",
        "histogram",
        "tokens",
        "max_tokens of each request that gave one.",
        buckets=_REQUEST_TOKENS,
    ),
    Metric("chairlift_request_choices", "histogram", "choices", "n of each request and prompt.", buckets=_CHOICES),
    Metric("chairlift_step_duration_seconds", "histogram", "seconds", "Time of one step.", buckets=_STEP_S),
    Metric(
        "chairlift_step_tokens",
        "histogram",
        "tokens",
        "Tokens computed in one step, padding left out.",
        buckets=_STEP_TOKENS,
    ),
    Metric(
        "chairlift_padding_tokens_total", "counter", "tokens", "Rows computed only to fill a batch (static batching)."
    ),
    Metric(
        "chairlift_wasted_rows_total",
        "counter",
        "rows",
        "Rows computed for requests that had ended already, so that their token was thrown away.",
    ),
    Metric("chairlift_requests_received_total", "counter", "requests", "Requests that arrived, refused ones included."),
    Metric(
        "chairlift_requests_finished_total",
        "counter",
        "requests",
        "Requests that left, by reason: stop, length, abort, error, rejected, deadline or timeout.",
        labels=("reason",),
    ),
    Metric(
        "chairlift_tenant_requests_finished_total",
        "counter",
        "requests",
        "The same by tier and tenant.",
        labels=(*PER_TENANT, "reason"),
    ),
    Metric(
        "chairlift_tenant_time_to_first_token_seconds",
        "histogram",
        "seconds",
        "From arrival to the first token, by tier and tenant.",
        labels=PER_TENANT,
        buckets=_FIRST_TOKEN_S,
    ),
    Metric(
        "chairlift_tenant_inter_token_latency_seconds",
        "histogram",
        "seconds",
        "From each token of a request to its next one, by tier and tenant.",
        labels=PER_TENANT,
        buckets=_INTER_TOKEN_S,
    ),
    Metric(
        "chairlift_tenant_prompt_tokens_total",
        "counter",
        "tokens",
        "Prompt tokens of requests that got their first token, cached included, by tier and tenant.",
        labels=PER_TENANT,
    ),
    Metric(
        "chairlift_tenant_generation_tokens_total",
        "counter",
        "tokens",
        "Tokens generated, by tier and tenant.",
        labels=PER_TENANT,
    ),
    Metric(
        "chairlift_slo_requests_total",
        "counter",
        "requests",
        "Requests with an objective (ttft_deadline_ms, deadline_ms or --max-ttft-ms), by whether all were met (met, "
        "missed). Refused for overload is missed; ended by the client counts as neither.",
        labels=(*PER_TENANT, "outcome"),
    ),
    Metric(
        "chairlift_goodput_requests_total",
        "counter",
        "requests",
        "Requests that ended with stop or length and met every objective they had.",
        labels=PER_TENANT,
    ),
    Metric(
        "chairlift_goodput_tokens_total",
        "counter",
        "tokens",
        "Tokens generated by those requests.",
        labels=PER_TENANT,
    ),
    Metric(
        "chairlift_fairness_jain_ratio",
        "gauge",
        "ratio",
        "Jain's index of the weighted tokens per tenant, between those that have had work for 10 s, over the time that "
        "all of these had it, at most a minute: 1 is level, 1/n is all for one of n.",
    ),
    Metric(
        "chairlift_scheduler_reconfigurations_total",
        "counter",
        "changes",
        "Times settings of the scheduler were changed at run time.",
    ),
    Metric("chairlift_engine_up", "gauge", "bool", "1 while the engine process serves, else 0."),
    Metric("chairlift_engine_restarts_total", "counter", "restarts", "Times the engine process was started again."),
)


class Metrics:
    """The collectors of the table, in a registry of their own. Counting and rendering belong in one thread."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry(auto_describe=True)
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, CounterFamily] = {}
        self._histograms: dict[str, HistogramFamily] = {}
        for metric in METRICS:
            self._create(metric)

    def gauge(self, name: str) -> Gauge:
        """Return the gauge ``chairlift_<name>``."""
        return self._gauges[f"chairlift_{name}"]

    def counter(self, name: str) -> CounterFamily:
        """Return the counter ``chairlift_<name>``, ``_total`` included."""
        return self._counters[f"chairlift_{name}"]

    def histogram(self, name: str) -> HistogramFamily:
        """Return the histogram ``chairlift_<name>``."""
        return self._histograms[f"chairlift_{name}"]

    def forget(self, label: str, value: str) -> None:
        """Drop every series by tier and tenant in which a label, one of the two, has this value."""
        for metric in METRICS:
            if metric.labels[:2] == PER_TENANT:
                family = self._counters.get(metric.name) or self._histograms[metric.name]
                family.remove(label, value)

    def render(self) -> bytes:
        """Return all values in Prometheus' text format."""
        return generate_latest(self.registry)

    def _create(self, metric: Metric) -> None:
        match metric.kind:
            case "gauge":
                self._gauges[metric.name] = Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
            case "counter":
                counter = self._counters[metric.name] = CounterFamily(metric.name, metric.help, metric.labels)
                self.registry.register(counter)
            case "histogram":
                histogram = HistogramFamily(metric.name, metric.help, metric.labels, metric.buckets)
                self._histograms[metric.name] = histogram
                self.registry.register(histogram)
