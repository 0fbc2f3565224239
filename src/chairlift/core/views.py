"""What policies, dashboards and curious people may see of the scheduler: read only.

Knows nothing of how the state behind it changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol


class RequestView(Protocol):
    """The part of a request that policies decide by. Counters are in tokens; priority: lower is more urgent."""

    @property
    def request_id(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def arrival_ns(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def needs_every_row(self) -> bool: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_published_pages(self) -> int: ...
    @property
    def pages(self) -> Sequence[int]: ...
    @property
    def ttft_deadline_ns(self) -> int | None: ...
    @property
    def deadline_ns(self) -> int | None: ...
    @property
    def is_promoted(self) -> bool: ...
    @property
    def waiting_since_ns(self) -> int: ...


class WaitPrediction(NamedTuple):
    """What was expected of a request when it arrived; see :mod:`chairlift.core.wait_prediction`."""

    ttft_ns: int
    raw_ns: int
    """The same before it was corrected by how wrong earlier predictions were."""
    kind: Literal["none", "prompts", "slots"]
    """What it waits for longest: nobody, prompts before it, or slots and pages that others hold."""
    num_requests_ahead: int
    num_tokens_ahead: int
    num_missing_departures: int
    """Running requests that must leave before it can start."""


class PrefillView(NamedTuple):
    """A prompt that wants part of a step's budget. ``is_running``: it was admitted in an earlier step."""

    request: RequestView
    num_remaining_tokens: int
    is_running: bool


class VictimPrices(Protocol):
    """What it would cost to preempt a running request now, and what that would free."""

    @property
    def now_ns(self) -> int: ...
    @property
    def num_useful_pages(self) -> int:
        """Pages that are needed now, and those that decodes will need soon: more are of no use."""
        ...

    @property
    def overhead_ns(self) -> float:
        """What any preemption costs, however little is lost."""
        ...

    def num_freed_pages(self, request: RequestView) -> int:
        """Pages that become available, all of the request's that nobody shares."""
        ...

    def cost_ns(self, request: RequestView) -> float:
        """Time of the machine that is lost, in the way of preempting that is in force."""
        ...


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler in numbers, now; names that end in ``total`` count since start."""

    num_running: int
    num_waiting: int
    num_pages: int
    num_free_pages: int
    num_cached_pages: int
    num_leased_pages: int
    preemptions_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    recomputed_tokens_total: int = 0
    """Tokens computed again after a preemption: work that was wasted."""
    swapped_out_pages_total: int = 0
    swapped_in_pages_total: int = 0
    num_host_pages: int = 0
    num_free_host_pages: int = 0
