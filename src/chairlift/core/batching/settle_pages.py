"""Pages for requests that decode: each gets the one it needs next, and while none is left somebody gives way.

Knows nothing of prompts. Of those who wait it knows only that some kept pages: these lose theirs before anybody who
runs is preempted, so that pages are never held by requests that wait for each other.
"""

from chairlift.core.events import PreemptionCause
from chairlift.core.giving_way import preempt, price_victims
from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft


def can_settle(state: SchedulerState, wanting: list[Request]) -> bool:
    """Whether :func:`settle_pages` would find pages without preempting, or may preempt since no step is in flight.

    A request that is in flight cannot be preempted: the step writes its pages, and its next token is not known yet.
    """
    if not wanting or not state.in_flight:
        return True
    missing = len(wanting) - state.memory.num_available
    if missing > 0 and missing > state.kept.num_reclaimable():
        return False
    return not state.has_quotas or not _over_quota(state, wanting)


def settle_pages(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
    """Give each decode in ``wanting`` its page, preempting the policy's victims while none is available.

    Where a tenant's running requests hold as many pages as they may, one of these gives way, unless it is alone.
    """
    memory, running = state.memory, state.running
    if wanting and state.has_quotas:
        _keep_quotas(state, wanting, draft)
    for index, request in enumerate(wanting):
        if memory.num_available == 0 and request.request_id in running:
            _free_pages(state, [other for other in wanting[index:] if other.request_id in running], draft)
        if request.request_id in running:
            state.grow(request, draft)
    # A victim may have grown before it was chosen; its growth must not reach the executor.
    if draft.has_preempted:
        draft.grown = [growth for growth in draft.grown if growth.request_id in running]


def _free_pages(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
    """Make a page available for the first of ``wanting``, and if it comes at once for the others, or preempt it."""
    state.kept.reclaim(len(wanting))
    first = wanting[0]
    while state.memory.num_available == 0 and first.request_id in state.running:
        _preempt_one(state, list(state.running.values()), wanting, "pages", draft)


def _preempt_one(
    state: SchedulerState, running: list[Request], wanting: list[Request], cause: PreemptionCause, draft: StepDraft
) -> None:
    """Preempt whom the policy chooses of ``running``: if possible nobody that was promised to be left alone."""
    limit = state.config.max_preemptions
    candidates = [r for r in running if not r.is_promoted and r.num_displacements < limit] or running
    num_needed = sum(other.request_id in state.running for other in wanting)
    prices = price_victims(state, draft.now_ns, num_needed)
    victim = state.running[state.policies.preemption.choose(candidates, prices).request_id]
    if any(other is victim for other in wanting):
        # A victim that wants a page itself wants none any more.
        prices = price_victims(state, draft.now_ns, num_needed - 1)
    preempt(state, victim, cause, draft, prices)


def _over_quota(state: SchedulerState, wanting: list[Request]) -> list[str]:
    """Return the tenants whose running requests would hold more pages than they may, in the order of ``wanting``."""
    wanted: dict[str, int] = {}
    for request in wanting:
        if request.request_id in state.running:
            wanted[request.tenant] = wanted.get(request.tenant, 0) + 1
    return [tenant for tenant, num_pages in wanted.items() if _exceeds_quota(state, tenant, num_pages)]


def _exceeds_quota(state: SchedulerState, tenant: str, num_wanted_pages: int) -> bool:
    quota = state.config.tenant(tenant).max_kv_pages
    if quota is None or state.count_held_pages(tenant) + num_wanted_pages <= quota:
        return False
    return sum(request.tenant == tenant for request in state.running.values()) > 1


def _keep_quotas(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
    for tenant in _over_quota(state, wanting):
        wanting_here = [request for request in wanting if request.tenant == tenant]
        while _exceeds_quota(state, tenant, sum(r.request_id in state.running for r in wanting_here)):
            running = [request for request in state.running.values() if request.tenant == tenant]
            _preempt_one(state, running, wanting_here, "quota", draft)
