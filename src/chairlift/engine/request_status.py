"""What the engine says when it is asked about requests: the scheduler's explanation as it travels.

Knows nothing of who asks.
"""

from collections.abc import Iterable

from chairlift.core.explain import RequestExplanation, count_waiting_by_reason, explain
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.engine.messages import RequestStatus

_NS_PER_S = 1e9


def request_status(scheduler: Scheduler, request_id: int, now_ns: int) -> RequestStatus | None:
    """Describe a live request; ``None`` if there is none of this id."""
    explanation = explain(scheduler, request_id, now_ns)
    return None if explanation is None else _to_status(explanation)


def running_and_waiting(
    scheduler: Scheduler, limit: int, now_ns: int
) -> tuple[tuple[RequestStatus, ...], tuple[RequestStatus, ...]]:
    """Describe the requests that were admitted first and those that are first in the queue."""

    def describe(requests: Iterable[Request]) -> tuple[RequestStatus, ...]:
        statuses = (request_status(scheduler, request.request_id, now_ns) for request in requests)
        return tuple(status for status in statuses if status is not None)

    state = scheduler.state
    return describe(list(state.running.values())[:limit]), describe(state.waiting.first(limit))


def count_by_reason(scheduler: Scheduler) -> dict[str, int]:
    """Count waiting requests by what they lack."""
    return {reason.value: count for reason, count in count_waiting_by_reason(scheduler).items()}


def _to_status(explanation: RequestExplanation) -> RequestStatus:
    predicted_ns = explanation.predicted_wait_ns
    return RequestStatus(
        request_id=explanation.request_id,
        phase=explanation.phase.value,
        blocked_on=None if explanation.blocked_on is None else explanation.blocked_on.value,
        reason=explanation.reason,
        tier=explanation.tier,
        tenant=explanation.tenant,
        waited_s=explanation.waited_ns / _NS_PER_S,
        position=explanation.position,
        num_tokens_ahead=explanation.num_tokens_ahead,
        predicted_wait_s=None if predicted_ns is None else predicted_ns / _NS_PER_S,
        num_prompt_tokens=explanation.num_prompt_tokens,
        num_computed_tokens=explanation.num_computed_tokens,
        num_output_tokens=explanation.num_output_tokens,
        max_tokens=explanation.max_tokens,
        num_kv_pages=explanation.num_kv_pages,
        num_preemptions=explanation.num_preemptions,
    )
