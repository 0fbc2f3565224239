"""How many pages may go to requests that pass one for which pages are kept, without making that one wait longer.

Knows nothing of the queue: it looks ahead to the moment at which those who run will have made room.

Source: EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995), with predicted output lengths.

A request that needs much of the pool may have to wait until one particular other one ends. To keep every page for it
until then would empty the machine for nothing. What will come free besides by that time is not needed for it::

    pages available when the request can start, as half-open intervals
    [0, needed)     kept for it
    [needed, ...)   spare: whoever passes it may hold these still
"""

from chairlift.core.request import Request
from chairlift.core.state import SchedulerState


def count_spare_pages(state: SchedulerState, num_missing_pages: int) -> int:
    """Return the pages that will be available beyond those that are missing now, as soon as these are.

    Running requests are taken to end when their predicted outputs are done, one token a step, and to grow until then.
    0 if nothing is spare, or if they would not make enough room.
    """
    memory = state.memory
    ends = sorted(
        (_num_steps_left(state, request), len(request.pages) - memory.num_shared_pages(request))
        for request in state.running.values()
    )
    num_spare = -num_missing_pages
    for index, (num_steps, num_pages) in enumerate(ends):
        num_spare += num_pages
        num_grown = (len(ends) - index - 1) * memory.pages_for(num_steps)
        if num_spare >= num_grown:
            return num_spare - num_grown
    return 0


def count_needed_pages(state: SchedulerState, request: Request) -> int:
    """Return the pages that a waiting request will hold when its predicted output is done."""
    return state.memory.pages_for(request.num_tokens + max(state.estimate.remaining_outputs(request) - 1, 0))


def _num_steps_left(state: SchedulerState, request: Request) -> int:
    num_steps = state.estimate.remaining_outputs(request)
    if not request.is_decoding:
        num_left = request.num_tokens - request.num_scheduled_tokens
        num_steps += -(-num_left // state.config.max_num_batched_tokens)
    return num_steps
