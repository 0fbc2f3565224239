"""Pages for requests that decode: each gets the one it needs next, and while none is left somebody gives way.

Knows nothing of prompts or of who waits.
"""

from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft


def settle_pages(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
    """Give each decode in ``wanting`` its page, preempting the policy's victims while none is available."""
    for request in wanting:
        while request.request_id in state.running and state.memory.num_available == 0:
            victim_id = state.policies.preemption.choose(list(state.running.values())).request_id
            state.preempt(state.running[victim_id], "pages", draft)
        if request.request_id in state.running:
            state.grow(request, draft)
    # A victim may have grown before it was chosen; its growth must not reach the executor.
    if draft.has_preempted:
        draft.grown = [growth for growth in draft.grown if growth.request_id in state.running]
