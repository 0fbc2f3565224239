"""What the engine process makes of the scheduler's events: notes for the metrics, and a warning at preemption.

Knows nothing of the scheduler's state.
"""

import logging

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.events import Admitted, Event, Finished, Preempted, Queued, Reconfigured
from chairlift.core.ports import EventSink
from chairlift.observability.logging import RateLimitedWarning
from chairlift.observability.step_stats import PreemptionNote, ResumeNote

_NOBODY = (0, "")

_logger = logging.getLogger(__name__)


class EngineEvents:
    """The engine's own event sink; passes every event on to ``also``, if there is one."""

    def __init__(self, scheduler: SchedulerConfig, cache: CacheConfig, also: EventSink | None = None) -> None:
        self._max_num_seqs: object = scheduler.max_num_seqs
        self._cache = cache
        self._also = also
        self._queued_ns: dict[int, int] = {}
        self._queue_times_ns: dict[int, int] = {}
        self._senders: dict[int, tuple[int, str]] = {}
        self._preemptions: list[PreemptionNote] = []
        self._resumes: list[ResumeNote] = []
        self._warning = RateLimitedWarning(_logger)

    def introduce(self, request_id: int, tier: int, tenant: str) -> None:
        """Say whose request it is that has just been queued; so this is known until it ends, whoever still wants it."""
        self._senders[request_id] = tier, tenant

    def emit(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Queued():
                self._queued_ns[event.request_id] = event.now_ns
            case Admitted(is_resume=False):
                self._queue_times_ns[event.request_id] = event.now_ns - self._queued_ns.pop(event.request_id)
            case Admitted():
                tier, tenant = self._senders.get(event.request_id, _NOBODY)
                self._resumes.append(ResumeNote(tier, tenant, event.num_recomputed_tokens, event.num_swapped_pages))
            case Finished():
                self._queued_ns.pop(event.request_id, None)
                self._senders.pop(event.request_id, None)
            case Preempted():
                self._note_preemption(event)
            case Reconfigured():
                self._max_num_seqs = event.changes.get("max_num_seqs", self._max_num_seqs)
            case _:
                pass
        if self._also is not None:
            self._also.emit(event)

    def take_queue_times_ns(self) -> dict[int, int]:
        """Remove and return how long each request waited that was admitted since the last call."""
        taken, self._queue_times_ns = self._queue_times_ns, {}
        return taken

    def take_preemptions(self) -> tuple[PreemptionNote, ...]:
        """Remove and return who gave way since the last call."""
        notes = tuple(self._preemptions)
        self._preemptions.clear()
        return notes

    def take_resumes(self) -> tuple[ResumeNote, ...]:
        """Remove and return which preempted requests went on since the last call."""
        notes = tuple(self._resumes)
        self._resumes.clear()
        return notes

    def _note_preemption(self, event: Preempted) -> None:
        tier, tenant = self._senders.get(event.request_id, _NOBODY)
        self._preemptions.append(PreemptionNote(tier, tenant, event.cause, event.mode, event.num_swapped_pages))
        if event.cause == "pages":
            self._warn(event)

    def _warn(self, event: Preempted) -> None:
        self._warning.warn(
            event.now_ns,
            "KV pages ran out: request %d gave way, and %d of its tokens will be computed again. If this happens "
            "often, lower --max-num-seqs (now %d) or raise --kv-cache-memory (now %d pages, %d tokens)",
            event.request_id,
            event.num_lost_tokens,
            self._max_num_seqs,
            self._cache.num_pages,
            self._cache.num_token_slots,
        )
