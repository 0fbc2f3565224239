"""What policies, dashboards and curious people may see of the scheduler: read only.

Knows nothing of how the state behind it changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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
    def num_preemptions(self) -> int: ...
    @property
    def pages(self) -> Sequence[int]: ...
    @property
    def ttft_deadline_ns(self) -> int | None: ...
    @property
    def deadline_ns(self) -> int | None: ...
    @property
    def is_promoted(self) -> bool: ...


class PrefillView(NamedTuple):
    """A prompt that wants part of a step's budget. ``is_running``: it was admitted in an earlier step."""

    request: RequestView
    num_remaining_tokens: int
    is_running: bool


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
