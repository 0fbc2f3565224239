"""Pages for requests that decode: each gets the one it needs next, and while none is left somebody gives way.

Knows nothing of prompts. Of those who wait it knows only that some kept pages: these lose theirs before anybody who
runs is preempted, so that pages are never held by requests that wait for each other.
"""

from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft


def can_settle(state: SchedulerState, wanting: list[Request]) -> bool:
    """Whether :func:`settle_pages` would find pages without preempting, or may preempt since no step is in flight.

    A request that is in flight cannot be preempted: the step writes its pages, and its next token is not known yet.
    """
    missing = len(wanting) - state.memory.num_available
    return missing <= 0 or not state.in_flight or missing <= state.num_reclaimable()


def settle_pages(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
    """Give each decode in ``wanting`` its page, preempting the policy's victims while none is available."""
    memory, running = state.memory, state.running
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
    state.reclaim(len(wanting))
    first = wanting[0]
    while state.memory.num_available == 0 and first.request_id in state.running:
        candidates = _candidates(state)
        num_needed = sum(other.request_id in state.running for other in wanting)
        victim_id = state.policies.preemption.choose(candidates, state.price_victims(draft.now_ns, num_needed)).request_id
        victim = state.running[victim_id]
        # A victim that wants a page itself wants none any more.
        num_needed -= any(other is victim for other in wanting)
        state.preempt(victim, "pages", draft, state.price_victims(draft.now_ns, num_needed))


def _candidates(state: SchedulerState) -> list[Request]:
    """Return who may lose pages to a running request: if possible nobody that was promised to be left alone."""
    everybody = list(state.running.values())
    limit = state.config.max_preemptions
    return [r for r in everybody if not r.is_promoted and r.num_displacements < limit] or everybody
