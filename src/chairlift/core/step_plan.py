"""The contract between the scheduler and every executor: what to compute in one step, and what came out.

Knows nothing of tensors: tokens, pages and requests are integers.

A plan is a *delta* against the executor's own record of running requests. Requests that decode are named once,
when they join the standing decode set; from then on each step computes one token for each of them without saying so,
until the plan lists them under ``decodes_left`` or ``ended``.

Rows of a step, in this order::

    [ standing decodes, in the order in which they joined | chunks, in plan order ]

A row *samples* if it is a decode or a chunk with ``samples=True``; a :class:`StepResult` has one entry per sampling
row, in row order. :class:`PlanState` keeps the record, so that no executor has to write this bookkeeping again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chairlift.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request the executor has not seen, or has dropped at a preemption: everything about it.

    ``token_ids`` are prompt and output so far (the output is not empty after a preemption), ``pages`` its page table,
    and tokens ``[0, num_computed_tokens)`` already lie in those pages.
    """

    request_id: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    pages: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end it: not to be sampled before ``sampling.min_tokens`` outputs."""
    adapter: str | None = None


class Chunk(NamedTuple):
    """A run of consecutive tokens of one request, computed in this step.

    ::

        request's tokens   0 ........ start ........ start+length ........
                           | in pages | this chunk    | not yet           |
        rows of this step             | length rows   | padding rows      |

    ``padding`` rows (static batching only) come after the real ones: they are computed like tokens of id 0 at the
    positions that follow, and what they write to the pages is overwritten before anything reads it.
    ``samples``: the last *real* row yields the next token. Nothing samples for a request that is pooled.
    """

    request_id: int
    start: int
    length: int
    samples: bool
    padding: int = 0


class PageGrowth(NamedTuple):
    """Pages appended to the end of a running request's page table."""

    request_id: int
    pages: tuple[int, ...]


class PageCopy(NamedTuple):
    """Copy the whole KV content of page ``source`` to page ``target`` before anything in this step runs."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass, as a delta to the plans before it.

    Applied in this order: ``ended`` (drop the request; its pages may be reused at once), ``decodes_left`` (leaves the
    standing set, stays known), ``swapped_out``, ``swapped_in``, ``new``, ``grown``, ``decodes_joined``, ``copies``;
    then the rows are computed.

    ``swapped_out`` copies device pages (``source``) to host pages (``target``), ``swapped_in`` host pages to device
    pages, all of the first before any of the second: a device page may be copied out and filled by a copy in at once.
    No page is a target twice in one list.

    ``epoch`` changes when the executor's record must be thrown away first: the plan is then a snapshot.
    ``num_tokens`` counts all rows including padding, and is never 0 in a plan that is given to an executor.
    """

    step: int
    epoch: int
    num_tokens: int
    num_decodes: int
    new: tuple[NewRequest, ...] = ()
    ended: tuple[int, ...] = ()
    grown: tuple[PageGrowth, ...] = ()
    decodes_joined: tuple[int, ...] = ()
    decodes_left: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    swapped_out: tuple[PageCopy, ...] = ()
    swapped_in: tuple[PageCopy, ...] = ()


class TokenLogprobs(NamedTuple):
    """How likely the model found a token, before anything changed its logits, and what it found most likely.

    ``rank`` is 1 for the most likely token; ``top`` has ids and log-probabilities, most likely first.
    """

    token_logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class PromptLogprobs(NamedTuple):
    """What the tokens of a prompt at ``start`` and after it were like; the first token of all has nothing before it."""

    start: int
    logprobs: tuple[TokenLogprobs, ...]


NOT_NUMBERS = "the model's logits are not numbers"
"""Why a row failed with which its request has nothing to do."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed: one sampled token per sampling row, in row order.

    ``token_counts`` is ``None`` when every sampling row gave exactly one token (always so without speculation);
    otherwise it has one count per sampling row and ``token_ids`` is their concatenation.
    """

    step: int
    token_ids: tuple[int, ...]
    duration_ns: int
    token_counts: tuple[int, ...] | None = None
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict[int, TokenLogprobs])
    swap_duration_ns: int = 0
    """Time spent on copies between device and host pages, contained in ``duration_ns`` where the step waited for it."""
    failed_rows: tuple[int, ...] = ()
    """Sampling rows (indices in row order) whose logits were not finite: their token is meaningless, and their
    request, no other, ends with an error."""
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    """Why rows failed, by request id, where the executor knows: :data:`NOT_NUMBERS`, or what may stand behind the name
    of what was asked."""
    prompt_logprobs: Mapping[int, PromptLogprobs] = field(default_factory=dict[int, PromptLogprobs])
    """By request id, for chunks of requests whose sampling asks for them. What is computed a second time after a
    preemption is told a second time."""
    embeddings: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    """By request id, for chunks that end the prompt of a request whose sampling pools: its vector, not normalized, as
    float32 numbers in little-endian order. A vector that is not finite is left out, and its request ends with an
    error."""


@dataclass(slots=True)
class RunningRequest:
    """An executor-side record of one request, kept up to date by :class:`PlanState`."""

    request: NewRequest
    token_ids: list[int]
    pages: list[int]
    num_computed_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.request.num_prompt_tokens


class PlanState:
    """The executor's record of running requests: apply each plan before its step, its tokens after.

    Executors that keep tensors instead may use it as the model to test against.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.requests: dict[int, RunningRequest] = {}
        self.decodes: dict[int, None] = {}

    def apply(self, plan: StepPlan) -> None:
        """Bring the record up to this plan. Plans must come in step order."""
        if plan.epoch != self.epoch:
            self.requests.clear()
            self.decodes.clear()
            self.epoch = plan.epoch
        for request_id in plan.ended:
            self.requests.pop(request_id, None)
            self.decodes.pop(request_id, None)
        for request_id in plan.decodes_left:
            del self.decodes[request_id]
        for new in plan.new:
            self.requests[new.request_id] = RunningRequest(
                new, list(new.token_ids), list(new.pages), new.num_computed_tokens
            )
        for growth in plan.grown:
            self.requests[growth.request_id].pages.extend(growth.pages)
        for request_id in plan.decodes_joined:
            self.decodes[request_id] = None

    def sampling_rows(self, plan: StepPlan) -> list[int]:
        """Request ids of the rows that sample in this step, in the order of the result's tokens."""
        rows = list(self.decodes)
        rows.extend(chunk.request_id for chunk in plan.chunks if chunk.samples)
        return rows

    def advance(self, plan: StepPlan, sampled: Iterable[int]) -> None:
        """Record that the step ran: tokens are computed, and each sampling row got its token."""
        for request_id in self.decodes:
            self.requests[request_id].num_computed_tokens += 1
        for chunk in plan.chunks:
            self.requests[chunk.request_id].num_computed_tokens = chunk.start + chunk.length
        for request_id, token_id in zip(self.sampling_rows(plan), sampled, strict=True):
            self.requests[request_id].token_ids.append(token_id)
