"""What happened, as small frozen values: the one stream that metrics, logs, timelines and tests read.

Knows nothing of its readers. Times are nanoseconds on the caller's clock; steps are step numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from chairlift.core.step_plan import Chunk


@dataclass(frozen=True, slots=True)
class Queued:
    """A request was accepted and waits."""

    request_id: int
    now_ns: int
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting request got a slot and pages; ``num_cached_tokens`` of its tokens need not be computed.

    They were found in the prefix tree or, at a resume, in pages that it had kept, on the device or in host memory.
    ``num_recomputed_tokens`` were computed before it was preempted and will be computed again.
    """

    request_id: int
    now_ns: int
    step: int
    num_cached_tokens: int
    num_queried_tokens: int
    is_resume: bool
    num_recomputed_tokens: int = 0
    num_swapped_pages: int = 0
    """Pages copied back from the host tier."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step was planned: the ids that decode in it, and its prefill chunks."""

    step: int
    now_ns: int
    decodes: tuple[int, ...]
    chunks: tuple[Chunk, ...]


PreemptionCause = Literal["pages", "slots", "urgency", "quantum", "quota"]
"""Why a running request gave way: pages for a running one, a slot or pages for a more urgent one, its quantum was used
up while an equal waited, or its tenant's quota."""
PreemptionMode = Literal["recompute", "swap", "tail"]
"""What became of its KV: dropped, moved to the host tier, or only the last pages dropped."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request gave up pages and waits again.

    ``num_lost_tokens`` were computed and will be again; ``num_swapped_pages`` went to the host tier.
    """

    request_id: int
    now_ns: int
    step: int
    cause: PreemptionCause
    num_lost_tokens: int
    num_freed_pages: int
    mode: PreemptionMode = "recompute"
    num_swapped_pages: int = 0


@dataclass(frozen=True, slots=True)
class TokensEmitted:
    """New tokens of a step: one for each of ``request_ids``."""

    step: int
    request_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step ran: its size and how long it took. ``num_wasted_rows`` worked for requests that had ended."""

    step: int
    duration_ns: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padding_tokens: int
    num_wasted_rows: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A request left for good. ``reason`` is a :class:`~chairlift.core.request.FinishReason` value."""

    request_id: int
    reason: str
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Settings changed while running: the new values, by field of the scheduler's configuration."""

    now_ns: int
    changes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PagesCached:
    """Pages entered the prefix tree, by number and key."""

    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageEvicted:
    """A page left the prefix tree to be used again."""

    page: int


Event = (
    Queued
    | Admitted
    | Scheduled
    | Preempted
    | TokensEmitted
    | StepCommitted
    | Finished
    | Reconfigured
    | PagesCached
    | PageEvicted
)
