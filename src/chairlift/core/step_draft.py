"""A step while it is being planned.

Knows nothing of policies: it collects decisions and freezes them into a :class:`~.step_plan.StepPlan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.core.page_pool import PageLease
from chairlift.core.request import Request
from chairlift.core.step_plan import Chunk, NewRequest, PageCopy, PageGrowth, StepPlan
from chairlift.core.token_budget import TokenBudget


@dataclass(slots=True)
class InFlightStep:
    """A step that was planned and not yet committed: the requests of its rows, in row order."""

    step: int
    decodes: list[Request]
    chunks: list[tuple[Request, Chunk]]
    budget: TokenBudget
    host_leases: list[PageLease]
    """Host pages that the step copies to the device: free once it is committed."""
    filled: Sequence[Request] = ()
    """Decodes whose last page the step fills, or that it ends."""
    num_swapped_pages: int = 0
    """Pages copied between device and host tier, both ways."""


class StepDraft:
    """Decisions of one step, in the order in which executors apply them."""

    __slots__ = (
        "budget",
        "chunks",
        "grown",
        "has_preempted",
        "host_leases",
        "joined",
        "new",
        "now_ns",
        "preempted",
        "step",
        "swapped_in",
    )

    def __init__(self, step: int, now_ns: int, budget: TokenBudget) -> None:
        self.step = step
        self.now_ns = now_ns
        self.budget = budget
        self.new: list[NewRequest] = []
        self.grown: list[PageGrowth] = []
        self.joined: list[int] = []
        self.chunks: list[tuple[Request, Chunk]] = []
        self.has_preempted = False
        """Whether somebody gave way to a running request: then nobody new is admitted."""
        self.preempted: dict[int, Request] = {}
        """Who gave way in this step, to whomever: not to be admitted again before the next one."""
        self.swapped_in: list[PageCopy] = []
        self.host_leases: list[PageLease] = []

    def introduce(self, request: Request) -> None:
        """Tell the executor about a request that it does not know."""
        self.new.append(describe(request))

    def freeze(
        self,
        epoch: int,
        num_decodes: int,
        *,
        ended: tuple[int, ...],
        left: tuple[int, ...],
        swapped_out: tuple[PageCopy, ...] = (),
    ) -> StepPlan:
        """Return the plan. The draft must not change afterwards."""
        return StepPlan(
            step=self.step,
            epoch=epoch,
            num_tokens=self.budget.num_tokens,
            num_decodes=num_decodes,
            new=tuple(self.new),
            ended=ended,
            grown=tuple(self.grown),
            decodes_joined=tuple(self.joined),
            decodes_left=left,
            chunks=tuple([chunk for _, chunk in self.chunks]),
            swapped_out=swapped_out,
            swapped_in=tuple(self.swapped_in),
        )


def describe(request: Request) -> NewRequest:
    """Everything about a running request that an executor needs to take it over."""
    return NewRequest(
        request_id=request.request_id,
        token_ids=request.token_ids[:],
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_computed_tokens,
        pages=tuple(request.pages),
        sampling=request.sampling,
        seed=request.seed,
        stop_token_ids=request.stop_token_ids,
        adapter=request.adapter,
    )
