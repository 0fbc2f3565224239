"""What the engine says when it is asked about requests: the scheduler's explanation as it travels.

Knows nothing of who asks.
"""

from collections.abc import Iterable

from chairlift.core.backlog import Amount
from chairlift.core.explain import (
    RequestExplanation,
    count_waiting_by_reason,
    explain,
    explain_first,
    find_places,
)
from chairlift.core.scheduler import Scheduler
from chairlift.engine.messages import RequestStatus

_NS_PER_S = 1e9


_PLACES_AGE_NS = 50_000_000


class RequestStatuses:
    """Answers questions about requests. Places in the queue are found out at most once in 50 ms, so that whoever asks
    all the time does not hold up those who wait.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._places: dict[int, Amount] = {}
        self._places_until_ns: int | None = None

    def find(self, request_ids: Iterable[int], now_ns: int) -> tuple[RequestStatus | None, ...]:
        """Describe live requests; ``None`` for those that are not."""
        if self._places_until_ns is None or now_ns >= self._places_until_ns:
            self._places = find_places(self._scheduler.state)
            self._places_until_ns = now_ns + _PLACES_AGE_NS
        found = (explain(self._scheduler, request_id, now_ns, self._places) for request_id in request_ids)
        return tuple(None if explanation is None else _to_status(explanation) for explanation in found)


def running_and_waiting(
    scheduler: Scheduler, limit: int, now_ns: int
) -> tuple[tuple[RequestStatus, ...], tuple[RequestStatus, ...]]:
    """Describe the requests that were admitted first and those that are first in the queue."""
    running, waiting = explain_first(scheduler, limit, now_ns)
    return tuple(map(_to_status, running)), tuple(map(_to_status, waiting))


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
