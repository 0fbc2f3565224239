"""What the engine says about itself after a step: the report from which all its metrics follow.

Knows nothing of how it travels.
"""

from dataclasses import dataclass

from chairlift.core.views import SchedulerStats

NO_SCHEDULER = SchedulerStats(
    num_running=0,
    num_waiting=0,
    num_pages=0,
    num_free_pages=0,
    num_cached_pages=0,
    num_leased_pages=0,
    preemptions_total=0,
    prefix_query_tokens_total=0,
    prefix_hit_tokens_total=0,
    prompt_tokens_total=0,
    generation_tokens_total=0,
)
"""Nothing runs, nothing was ever counted."""


@dataclass(frozen=True, slots=True)
class PreemptionNote:
    """A request gave way; ``cause`` and ``mode`` are those of :class:`~chairlift.core.events.Preempted`."""

    tier: int
    tenant: str
    cause: str
    mode: str
    num_swapped_pages: int


@dataclass(frozen=True, slots=True)
class ResumeNote:
    """A preempted request goes on: so many tokens are computed once more, so many pages come back from the host."""

    tier: int
    tenant: str
    num_recomputed_tokens: int
    num_swapped_pages: int


@dataclass(frozen=True, slots=True)
class FullQueue:
    """A queue that takes so many more requests, and the engine's refusal of whoever comes after them.

    It is for newcomers of ``from_tier`` and of less urgent ones, of one tenant or, without one, of all.
    """

    num_places: int
    from_tier: int
    message: str
    retry_after_s: int
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """The scheduler's numbers after a step, and the step itself.

    A report that follows no step, such as after aborts, has ``num_steps`` 0 and zeros for the step.
    """

    scheduler: SchedulerStats
    num_steps: int = 0
    duration_ns: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_padding_tokens: int = 0
    num_wasted_rows: int = 0
    queue_times_ns: tuple[int, ...] = ()
    """One entry per request that got its first slot since the report before."""
    queued_request_ids: tuple[int, ...] = ()
    """Which requests these are, in the same order."""
    preemptions: tuple[PreemptionNote, ...] = ()
    """Since the report before, like ``resumes``."""
    resumes: tuple[ResumeNote, ...] = ()
    waiting_by_reason: dict[str, int] | None = None
    """Waiting requests by :class:`~chairlift.core.request.BlockedOn` value; not in every report."""
    num_received: int = 0
    """Choices that were handed to the engine since it started, whatever became of them."""
    full_queues: tuple[FullQueue, ...] = ()
    """Those that are full or may be soon."""
