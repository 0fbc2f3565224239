"""Every metric of Chairlift, in one table: name, kind, unit, help, labels and buckets.

Knows nothing of who counts: :mod:`chairlift.observability.recorder` does.

A request for ``n`` choices counts ``n`` times everywhere, because each choice takes its own slot; so at any time
received = finished (all reasons) + running + waiting.
"""

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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

FINISH_REASONS = ("stop", "length", "abort", "error", "rejected")
"""Values of the label ``reason``: each request ends with exactly one of them."""


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
    Metric("chairlift_num_preemptions_total", "counter", "preemptions", "Times a request lost its KV pages."),
    Metric("chairlift_prompt_tokens_total", "counter", "tokens", "Prompt tokens of started requests, cached included."),
    Metric("chairlift_generation_tokens_total", "counter", "tokens", "Tokens generated."),
    Metric(
        "chairlift_time_to_first_token_seconds",
        "histogram",
        "seconds",
        "From arrival to the first token.",
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
        "Requests that left, by reason: stop, length, abort, error or rejected.",
        labels=("reason",),
    ),
    Metric("chairlift_engine_up", "gauge", "bool", "1 while the engine process serves, else 0."),
    Metric("chairlift_engine_restarts_total", "counter", "restarts", "Times the engine process was started again."),
)


class Metrics:
    """The collectors of the table, in a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry(auto_describe=True)
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            self._create(metric)

    def gauge(self, name: str) -> Gauge:
        """Return the gauge ``chairlift_<name>``."""
        return self._gauges[f"chairlift_{name}"]

    def counter(self, name: str) -> Counter:
        """Return the counter ``chairlift_<name>``, ``_total`` included."""
        return self._counters[f"chairlift_{name}"]

    def histogram(self, name: str) -> Histogram:
        """Return the histogram ``chairlift_<name>``."""
        return self._histograms[f"chairlift_{name}"]

    def render(self) -> bytes:
        """Return all values in Prometheus' text format."""
        return generate_latest(self.registry)

    def _create(self, metric: Metric) -> None:
        match metric.kind:
            case "gauge":
                self._gauges[metric.name] = Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
            case "counter":
                self._counters[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            case "histogram":
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
                )
