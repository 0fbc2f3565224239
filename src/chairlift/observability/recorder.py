"""Counts what the API process sees: requests, tokens as they reach it, and the engine's own reports.

Knows nothing of requests' content, and reads no clock: callers bring durations.
"""

from collections.abc import Mapping, Sequence

from chairlift.config.resolved import TenantTable
from chairlift.core.request import BlockedOn
from chairlift.core.views import SchedulerStats
from chairlift.observability.accounts import Accounts, Objectives
from chairlift.observability.fairness_window import FairnessWindow
from chairlift.observability.metrics import FINISH_REASONS, Metrics
from chairlift.observability.request_record import RequestRecord, RequestSeries
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
    """Feeds :class:`~chairlift.observability.metrics.Metrics`; one per API process.

    Args:
        metrics: where it counts.
        tenants: whose labels are always their own, and the weights by which service is compared.
    """

    def __init__(self, metrics: Metrics, tenants: TenantTable | None = None) -> None:
        self.metrics = metrics
        self._tenants = tenants or TenantTable()
        self._last = NO_SCHEDULER
        self._accounts = Accounts(metrics, self._tenants)
        self._fairness = FairnessWindow()
        self._series = RequestSeries(metrics)
        self._running = metrics.gauge("num_requests_running")
        self._waiting = metrics.gauge("num_requests_waiting")
        self._waiting_by_reason = metrics.gauge("num_requests_waiting_by_reason")
        self._usage = metrics.gauge("kv_cache_usage_ratio")
        self._cached = metrics.gauge("kv_cache_cached_ratio")
        self._swapped = metrics.gauge("swap_space_usage_ratio")
        self._jain = metrics.gauge("fairness_jain_ratio")
        self._up = metrics.gauge("engine_up")
        self._restarts = metrics.counter("engine_restarts_total")
        self._reconfigurations = metrics.counter("scheduler_reconfigurations_total")
        self._totals = [(field, metrics.counter(name)) for field, name in _TOTALS]
        for reason in FINISH_REASONS:
            self._series.finished.labels(reason)
        self._queue_time = metrics.histogram("request_queue_time_seconds")
        self._step_duration = metrics.histogram("step_duration_seconds")
        self._step_tokens = metrics.histogram("step_tokens")
        self._padding = metrics.counter("padding_tokens_total")
        self._wasted = metrics.counter("wasted_rows_total")
        self._set_reasons({})
        self._jain.set(1)

    def request(
        self,
        tier: int,
        tenant: str,
        objectives: Objectives,
        *,
        num_prompt_tokens: int,
        num_choices: int,
        arrival_ns: int,
    ) -> RequestRecord:
        """Count a request at its arrival, and return what counts the rest of it."""
        return RequestRecord(
            self._series,
            self._accounts.find(tier, tenant, arrival_ns),
            objectives,
            num_prompt_tokens=num_prompt_tokens,
            num_choices=num_choices,
            arrival_ns=arrival_ns,
        )

    @property
    def tenants(self) -> TenantTable:
        """What each tenant may have, as far as it is known here."""
        return self._tenants

    def compare_service(self, now_ns: int) -> None:
        """Follow how level the service of tenants is; cheap unless a second has passed."""
        if self._fairness.wants_look(now_ns):
            self._jain.set(self._fairness.look(now_ns, self._accounts.services(self._tenants)))

    def reconfigured(self, tenants: TenantTable, *, is_new: bool) -> None:
        """Settings of the engine are known: these tenants, and whether somebody has just changed them."""
        self._tenants = tenants
        self._accounts.add_tenants(tenants)
        self._reconfigurations.inc(is_new)

    def step(self, stats: StepStats, now_ns: int = 0) -> None:
        """Take the engine's report."""
        self._set_gauges(stats.scheduler)
        for field, counter in self._totals:
            counter.inc(getattr(stats.scheduler, field) - getattr(self._last, field))
        self._last = stats.scheduler
        self._observe_queue_times(stats.queue_times_ns)
        if stats.waiting_by_reason is not None:
            self._set_reasons(stats.waiting_by_reason)
        self._count_preemptions(stats, now_ns)
        if stats.num_steps:
            self._step_duration.observe(stats.duration_ns / _NS_PER_S)
            self._step_tokens.observe(stats.num_prefill_tokens + stats.num_decode_tokens)
            self._padding.inc(stats.num_padding_tokens)
            self._wasted.inc(stats.num_wasted_rows)

    def _count_preemptions(self, stats: StepStats, now_ns: int) -> None:
        """On the accounts of those who gave way, even if they have ended meanwhile."""
        for note in stats.preemptions:
            account = self._accounts.find(note.tier, note.tenant, now_ns)
            account.preempted(note.cause, note.mode, note.num_swapped_pages)
        for note in stats.resumes:
            account = self._accounts.find(note.tier, note.tenant, now_ns)
            account.resumed(note.num_recomputed_tokens, note.num_swapped_pages)

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
        self._set_reasons({})

    def _set_gauges(self, stats: SchedulerStats) -> None:
        num_pages = max(stats.num_pages, 1)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._usage.set(stats.num_leased_pages / num_pages)
        self._cached.set(stats.num_cached_pages / num_pages)
        self._swapped.set((stats.num_host_pages - stats.num_free_host_pages) / max(stats.num_host_pages, 1))

    def _set_reasons(self, waiting_by_reason: Mapping[str, int]) -> None:
        for reason in BlockedOn:
            self._waiting_by_reason.labels(reason.value).set(waiting_by_reason.get(reason.value, 0))

    def _observe_queue_times(self, queue_times_ns: Sequence[int]) -> None:
        for queue_time_ns in queue_times_ns:
            self._queue_time.observe(queue_time_ns / _NS_PER_S)
