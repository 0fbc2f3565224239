"""One log line every few seconds of work: what runs, what waits, how fast, how full.

Knows nothing of clocks; callers bring the time.
"""

import logging

from chairlift.observability.logging import format_fields
from chairlift.observability.step_stats import NO_SCHEDULER, StepStats

_NS_PER_S = 1_000_000_000

_logger = logging.getLogger(__name__)


class ActivityLog:
    """Follows the engine's reports. An idle engine is quiet: it reports nothing, so nothing is logged."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_ns = int(interval_s * _NS_PER_S)
        self._since_ns: int | None = None
        self._before = NO_SCHEDULER

    def step(self, stats: StepStats, now_ns: int) -> None:
        """Take a report, and log a line if the last one is an interval ago. Rates are over that time."""
        now = stats.scheduler
        if self._since_ns is None or now.generation_tokens_total < self._before.generation_tokens_total:
            self._since_ns, self._before = now_ns, now  # the first report, or a new engine that counts from 0
            return
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < self._interval_ns:
            return
        before, elapsed_s = self._before, elapsed_ns / _NS_PER_S
        num_queried = now.prefix_query_tokens_total - before.prefix_query_tokens_total
        num_hit = now.prefix_hit_tokens_total - before.prefix_hit_tokens_total
        fields = {
            "running": now.num_running,
            "waiting": now.num_waiting,
            "prompt_tokens_per_s": round((now.prompt_tokens_total - before.prompt_tokens_total) / elapsed_s, 1),
            "generation_tokens_per_s": round(
                (now.generation_tokens_total - before.generation_tokens_total) / elapsed_s, 1
            ),
            "kv_usage": f"{now.num_leased_pages / max(now.num_pages, 1):.1%}",
            "prefix_hits": f"{num_hit / max(num_queried, 1):.1%}",
            "preemptions": now.preemptions_total - before.preemptions_total,
        }
        _logger.info("%s", format_fields(**fields))
        self._since_ns, self._before = now_ns, now
