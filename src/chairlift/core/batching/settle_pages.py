"""Pages for requests that decode: each gets the one it needs next, and while none is left somebody gives way.

Knows nothing of prompts. Of those who wait it knows only that some kept pages: these lose theirs before anybody who
runs is preempted, so that pages are never held by requests that wait for each other.
"""

from chairlift.core.batching.quotas import would_exceed_quota
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
    if draft.preempted:
        draft.grown = [growth for growth in draft.grown if growth.request_id in running]


def find_stuck(state: SchedulerState, prompts: list[Request]) -> list[Request]:
    """Return prompts that need a page and get none unless somebody gives way; nobody while a step is in flight.

    The first prompt, if nobody decodes and no prompt has room. While decodes run, a prompt without pages waits for
    theirs. And the first prompt of each tenant with so many prompts at a time that none of them fits into its quota.
    """
    if state.in_flight or not prompts:
        return []
    memory, is_full = state.memory, {r.request_id: r.num_scheduled_tokens == r.num_token_slots for r in prompts}
    if not (state.decoding or memory.num_available) and all(is_full.values()):
        return prompts[:1]
    stuck: list[Request] = []
    if state.has_quotas:
        for tenant in dict.fromkeys(request.tenant for request in prompts):
            running = [request for request in state.running.values() if request.tenant == tenant]
            if would_exceed_quota(state, tenant, 1) and all(is_full.get(request.request_id) for request in running):
                stuck.append(running[0])
    return stuck


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
    return [tenant for tenant, num_pages in wanted.items() if would_exceed_quota(state, tenant, num_pages)]


def _keep_quotas(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
    for tenant in _over_quota(state, wanting):
        wanting_here = [request for request in wanting if request.tenant == tenant]
        while would_exceed_quota(state, tenant, sum(r.request_id in state.running for r in wanting_here)):
            running = [request for request in state.running.values() if request.tenant == tenant]
            _preempt_one(state, running, wanting_here, "quota", draft)
