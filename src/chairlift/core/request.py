"""A request's life as the scheduler sees it: integers, counters and legal transitions.

Knows nothing of text, clients or tensors.

::

    add ──> WAITING ──admit──> RUNNING ──> FINISHED
                                │    ▲        ▲
                             preempt └admit┐  │
                                ▼          │  │
                             PREEMPTED ────┘  │
            WAITING, PREEMPTED ──abort────────┘

A preempted request may keep what was computed for it: its first pages (``lease``), or a copy of them in host memory
(``host_lease``), never both.

Tokens of a request, as half-open intervals::

    0 ............ num_computed_tokens ...... num_scheduled_tokens ...... num_tokens + num_pending
    | KV in pages          | in a step in flight       | still to compute          |
    0 .................................... len(token_ids) = num_tokens             | sampled in flight, not yet known
"""

from array import array
from collections.abc import Hashable, MutableSequence, Sequence
from enum import Enum

from chairlift.core.page_pool import PageLease
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.views import WaitPrediction
from chairlift.errors import InvariantError


class Phase(Enum):
    """Where a request is in its life. Prefilling and decoding are not phases: they follow from its counters."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"

    # Members are single objects; an enum hashes their names, in Python.
    __hash__ = object.__hash__


class FinishReason(Enum):
    """Why a request ended; the values of ``STOP`` and ``LENGTH`` are those of OpenAI's API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"
    """Its own deadline passed, or could no longer be met, before it was served."""
    TIMEOUT = "timeout"
    """It waited for its first slot longer than ``--queue-timeout``."""


class BlockedOn(Enum):
    """What a waiting request lacked when the scheduler last looked at it."""

    SLOTS = "slots"
    PAGES = "pages"
    BUDGET = "budget"
    QUOTA = "quota"
    """Its tenant's requests hold as many KV pages as the tenant may."""
    RESERVED = "reserved"
    """What it needs is kept for a request before it that was passed often enough."""
    PREFIX = "prefix"
    """A running request is just computing its next pages, which it can then share."""
    SWAP_IN = "swap_in"
    """Its KV lies in host memory and needs pages to come back to."""
    GROUP = "group"
    """Static batching: the running group has to end first."""
    GRAMMAR = "grammar"
    """Its grammar is being compiled; the scheduler does not know of it yet."""


_LEGAL = {
    Phase.WAITING: {Phase.RUNNING, Phase.FINISHED},
    Phase.RUNNING: {Phase.PREEMPTED, Phase.FINISHED},
    Phase.PREEMPTED: {Phase.RUNNING, Phase.FINISHED},
    Phase.FINISHED: set[Phase](),
}


class Request:
    """One sequence to generate, or to make a vector of. ``n`` choices of an API request are ``n`` of these.

    Args:
        request_id: unique in this scheduler, for ever.
        prompt_token_ids: at least one token. An ``array`` or ``bytearray`` is taken over as it is, so that a million
            simulated prompts are small; anything else is copied into a list.
        sampling: how to choose tokens and when to stop.
        seed: the random seed in force (the client's, or one drawn at arrival), so that a preemption changes nothing.
        stop_token_ids: every token that ends it: the request's own and, unless it ignores them, the model's.
        priority: tier, lower is more urgent.
        tenant: whom fairness is kept for.
        cache_salt, adapter: requests share prefix pages only when both are equal.
        ttft_deadline_ns: when its first token must be there, on the clock that the scheduler is told.
        deadline_ns: when its last token must be there.
    """

    __slots__ = (
        "adapter",
        "arrival_ns",
        "blocked_on",
        "cache_salt",
        "deadline_ns",
        "expected_wait",
        "finish_reason",
        "first_scheduled_ns",
        "found_prefix",
        "has_yielded",
        "host_lease",
        "is_decoding",
        "is_promoted",
        "lease",
        "max_computed_tokens",
        "max_tokens",
        "next_turn_tokens",
        "num_admitted_tokens",
        "num_cached_tokens",
        "num_charged_tokens",
        "num_computed_tokens",
        "num_displacements",
        "num_in_flight",
        "num_passed",
        "num_peak_tokens",
        "num_pending_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_pages",
        "num_scheduled_tokens",
        "num_swapped_tokens",
        "num_token_slots",
        "page_keys",
        "phase",
        "priority",
        "request_id",
        "sampling",
        "seed",
        "sequence",
        "stop_token",
        "stop_token_ids",
        "tenant",
        "token_ids",
        "ttft_deadline_ns",
        "waiting_since_ns",
    )

    def __init__(  # noqa: PLR0913, PLR0915 - one flat record is what the hot loop reads fastest
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        seed: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        priority: int = 0,
        tenant: str = "",
        cache_salt: str | None = None,
        adapter: str | None = None,
        ttft_deadline_ns: int | None = None,
        deadline_ns: int | None = None,
    ) -> None:
        self.request_id = request_id
        is_compact = isinstance(prompt_token_ids, bytearray | array)
        self.token_ids: MutableSequence[int] = prompt_token_ids if is_compact else array("I", prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.sampling = sampling
        self.seed = seed
        self.stop_token_ids = stop_token_ids
        self.priority = priority
        self.tenant = tenant
        self.cache_salt = cache_salt
        self.adapter = adapter
        self.ttft_deadline_ns = ttft_deadline_ns
        self.deadline_ns = deadline_ns
        self.max_tokens = 0
        """Output tokens at most; set by :meth:`limit_output`."""
        self.max_computed_tokens = 0
        """Tokens that are ever computed for it: all but the last output token, which nothing follows."""
        self.is_decoding = False
        """Whether its last prefill chunk was planned, so that it has only decodes to come."""
        self.phase = Phase.WAITING
        self.arrival_ns = 0
        self.sequence = 0
        """Arrival number, given by the scheduler: the tie-breaker of every order."""
        self.num_computed_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_pending_tokens = 0
        self.num_in_flight = 0
        """Steps in flight that read or write this request's pages."""
        self.lease: PageLease | None = None
        self.host_lease: PageLease | None = None
        """Pages of the host tier that hold its first tokens while it waits."""
        self.num_swapped_tokens = 0
        """Tokens whose KV lies in the host tier."""
        self.num_token_slots = 0
        """Tokens that its pages can hold."""
        self.next_turn_tokens = 0
        """``num_scheduled_tokens`` at which a decode has filled a page or leaves; until then it just goes on."""
        self.page_keys: list[Hashable] = []
        """Keys of the full pages of ``token_ids``, as far as they were needed yet."""
        self.found_prefix: tuple[int, int, list[int]] | None = None
        """Version of the prefix tree, pages looked up and pages found when it was last asked."""
        self.num_published_pages = 0
        """Leading pages already offered to the prefix tree."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens found in the prefix tree at first admission; ``None`` before it."""
        self.num_preemptions = 0
        self.num_displacements = 0
        """Preemptions for a waiting request: after ``max_preemptions`` of these it is left alone."""
        self.num_peak_tokens = 0
        """Most tokens ever computed for it before a preemption; what is computed below that is computed again."""
        self.num_admitted_tokens = 0
        """Tokens known when it was last admitted."""
        self.has_yielded = False
        """Whether it waits since it used up its quantum while an equal waited."""
        self.waiting_since_ns = 0
        """When it arrived, or was last preempted."""
        self.num_charged_tokens = 0
        """Tokens that its tenant was charged for; computing them again after a preemption is free of charge."""
        self.is_promoted = False
        """Whether the guaranteed share is its turn: it comes before everybody and is not displaced."""
        self.num_passed = 0
        """Times that a request behind it in the order was admitted while it lacked a resource."""
        self.blocked_on: BlockedOn | None = None
        self.first_scheduled_ns: int | None = None
        self.expected_wait: WaitPrediction | None = None
        """What was predicted at its arrival, by whoever added it."""
        self.finish_reason: FinishReason | None = None
        self.stop_token: int | None = None
        """The token that ended it, if one did."""

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} {self.phase.value} prompt={self.num_prompt_tokens} "
            f"output={self.num_output_tokens} computed={self.num_computed_tokens} "
            f"scheduled={self.num_scheduled_tokens} pages={len(self.pages)}>"
        )

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The output so far, as a new list."""
        return list(self.token_ids[self.num_prompt_tokens :])

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens no step was planned for yet, sampled-in-flight ones included."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_scheduled_tokens

    @property
    def is_pooled(self) -> bool:
        """Whether it ends with a vector when its prompt is computed, instead of generating."""
        return self.sampling.pooling is not None

    @property
    def needs_every_row(self) -> bool:
        """Whether its vector is made of all its rows, so that none of them may be taken from a cache."""
        return self.sampling.pooling == "mean"

    @property
    def pages(self) -> Sequence[int]:
        """Page table, in order; a preempted request has one if it kept its first pages."""
        return self.lease.pages if self.lease is not None else ()

    def limit_output(self, max_tokens: int) -> None:
        """Set the output limit: the client's, or what the model length and the pool leave if that is less.

        0 is the limit of a pooled request: it ends when its prompt is computed.
        """
        self.max_tokens = max_tokens
        self.max_computed_tokens = self.num_prompt_tokens + max(max_tokens, 1) - 1

    def move_to(self, phase: Phase) -> None:
        """Change phase.

        Raises:
            InvariantError: the transition is not one that the picture above allows.
        """
        if phase not in _LEGAL[self.phase]:
            raise InvariantError(f"request {self.request_id} cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase
