"""Counts what the API process sees: requests, tokens as they reach it, and the engine's own reports.

Knows nothing of requests' content, and reads no clock: callers bring durations.
"""

from collections.abc import Sequence

from chairlift.core.views import SchedulerStats
from chairlift.observability.metrics import FINISH_REASONS, Metrics
from chairlift.observability.step_stats import NO_SCHEDULER, StepStats

_TOTALS = (
    ("preemptions_total", "num_preemptions_total"),
    ("prefix_query_tokens_total", "prefix_cache_queries_tokens_total"),
    ("prefix_hit_tokens_total", "prefix_cache_hits_tokens_total"),
    ("prompt_tokens_total", "prompt_tokens_total"),
    ("generation_tokens_total", "generation_tokens_total"),
)
"""Field of :class:`SchedulerStats` -> counter that follows it."""

_NS_PER_S = 1e9


class Recorder:
    """Feeds :class:`~chairlift.observability.metrics.Metrics`; one per API process."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._last = NO_SCHEDULER
        self._running = metrics.gauge("num_requests_running")
        self._waiting = metrics.gauge("num_requests_waiting")
        self._usage = metrics.gauge("kv_cache_usage_ratio")
        self._cached = metrics.gauge("kv_cache_cached_ratio")
        self._up = metrics.gauge("engine_up")
        self._restarts = metrics.counter("engine_restarts_total")
        self._received = metrics.counter("requests_received_total")
        self._totals = [(field, metrics.counter(name)) for field, name in _TOTALS]
        finished = metrics.counter("requests_finished_total")
        self._finished = {reason: finished.labels(reason) for reason in FINISH_REASONS}
        self._first_token = metrics.histogram("time_to_first_token_seconds")
        self._inter_token = metrics.histogram("inter_token_latency_seconds")
        self._e2e = metrics.histogram("e2e_request_latency_seconds")
        self._queue_time = metrics.histogram("request_queue_time_seconds")
        self._step_duration = metrics.histogram("step_duration_seconds")
        self._step_tokens = metrics.histogram("step_tokens")
        self._padding = metrics.counter("padding_tokens_total")
        self._wasted = metrics.counter("wasted_rows_total")

    def received(self, num_choices: int) -> None:
        """Count a request at its arrival."""
        self._received.inc(num_choices)

    def finished(self, reason: str, duration_s: float | None = None, *, num_choices: int = 1) -> None:
        """Count the end of a request, with its whole duration if it ran to its own end."""
        self._finished[reason].inc(num_choices)
        if duration_s is not None:
            self._e2e.observe(duration_s)

    def first_token(self, since_arrival_s: float) -> None:
        """Take the time to a request's first token."""
        self._first_token.observe(since_arrival_s)

    def next_tokens(self, since_last_s: float, num_tokens: int) -> None:
        """Take the pause before ``num_tokens`` that came together: it is shared out evenly between them."""
        for _ in range(num_tokens):
            self._inter_token.observe(since_last_s / num_tokens)

    def step(self, stats: StepStats) -> None:
        """Take the engine's report."""
        self._set_gauges(stats.scheduler)
        for field, counter in self._totals:
            counter.inc(getattr(stats.scheduler, field) - getattr(self._last, field))
        self._last = stats.scheduler
        self._observe_queue_times(stats.queue_times_ns)
        if stats.num_steps:
            self._step_duration.observe(stats.duration_ns / _NS_PER_S)
            self._step_tokens.observe(stats.num_prefill_tokens + stats.num_decode_tokens)
            self._padding.inc(stats.num_padding_tokens)
            self._wasted.inc(stats.num_wasted_rows)

    def engine_ready(self, *, is_restart: bool) -> None:
        """The engine process serves; a new one counts its totals from 0."""
        self._last = NO_SCHEDULER
        self._up.set(1)
        if is_restart:
            self._restarts.inc()

    def engine_down(self) -> None:
        """The engine process is gone, and with it everything that ran, waited or lay in its KV pages."""
        self._up.set(0)
        self._set_gauges(NO_SCHEDULER)

    def _set_gauges(self, stats: SchedulerStats) -> None:
        num_pages = max(stats.num_pages, 1)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._usage.set(stats.num_leased_pages / num_pages)
        self._cached.set(stats.num_cached_pages / num_pages)

    def _observe_queue_times(self, queue_times_ns: Sequence[int]) -> None:
        for queue_time_ns in queue_times_ns:
            self._queue_time.observe(queue_time_ns / _NS_PER_S)
