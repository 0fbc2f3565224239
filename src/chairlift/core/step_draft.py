"""A step while it is being planned.

Knows nothing of policies: it collects decisions and freezes them into a :class:`~.step_plan.StepPlan`.
"""

from dataclasses import dataclass, field

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
    filled: list[Request] = field(default_factory=list[Request])
    """Decodes whose last page the step fills, or that it ends."""
    num_swapped_pages: int = 0
    """Pages copied between device and host tier, both ways."""
    host_leases: list[PageLease] = field(default_factory=list[PageLease])
    """Host pages that the step copies to the device: free once it is committed."""


@dataclass(slots=True)
class StepDraft:
    """Decisions of one step, in the order in which executors apply them."""

    step: int
    now_ns: int
    budget: TokenBudget
    new: list[NewRequest] = field(default_factory=list[NewRequest])
    grown: list[PageGrowth] = field(default_factory=list[PageGrowth])
    joined: list[int] = field(default_factory=list[int])
    chunks: list[tuple[Request, Chunk]] = field(default_factory=list[tuple[Request, Chunk]])
    has_preempted: bool = False
    """Whether somebody gave way to a running request: then nobody new is admitted."""
    preempted: dict[int, Request] = field(default_factory=dict[int, Request])
    """Who gave way in this step, to whomever: not to be admitted again before the next one."""
    swapped_in: list[PageCopy] = field(default_factory=list[PageCopy])
    host_leases: list[PageLease] = field(default_factory=list[PageLease])

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
            chunks=tuple(chunk for _, chunk in self.chunks),
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
