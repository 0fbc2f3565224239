"""Who may join the queue: refuses a request that the operator's caps or a deadline leave no room for.

Knows nothing of messages or of clocks; what it predicts with is the scheduler's.
"""

import math

from chairlift.config.sections import QueueSettings
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.views import WaitPrediction
from chairlift.core.wait_prediction import Newcomer, find_standing, starts_at_once
from chairlift.errors import OverloadedError

_LEAST_RETRY_AFTER_S = 1
_MOST_RETRY_AFTER_S = 60
_NS_PER_S = 1e9
_NS_PER_MS = 1e6
MAX_TTFT_IS = "--max-ttft-ms is"


class QueueGate:
    """Enforces :class:`~chairlift.config.sections.QueueSettings`, the caps of tenants, and what can still be promised.

    A request that would start at once is never refused. ``n`` choices wait as ``n`` requests, but are accepted or
    refused together, when the first of them arrives.

    Every refusal says when to come back: when so much has left that the request would be taken, if nobody else comes;
    rounded up to whole seconds, and at most a minute.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings

    def check(
        self, scheduler: Scheduler, newcomer: Newcomer, *, deadline_ms: float | None = None
    ) -> WaitPrediction | None:
        """Return what is predicted for the newcomer, if anything is known yet, or refuse it.

        ``deadline_ms`` is the time that its own deadlines leave until its first token.

        Raises:
            OverloadedError: it may not wait, or would wait too long; the message names limit, value and setting.
        """
        standing = find_standing(scheduler.state, newcomer)
        prediction = scheduler.waits.predict(scheduler.state, newcomer, standing)
        if not standing.has_place:
            self._check_queue(scheduler, newcomer)
            self._check_tenant(scheduler, newcomer)
        if prediction is not None and not starts_at_once(scheduler.state, standing):
            self._check_wait(prediction, deadline_ms)
        return prediction

    def _check_queue(self, scheduler: Scheduler, newcomer: Newcomer) -> None:
        num_waiting, num_tokens = scheduler.num_waiting, scheduler.num_waiting_tokens
        max_reqs = self._settings.max_num_queued_reqs
        if max_reqs is not None and num_waiting >= max_reqs + num_starting(scheduler, newcomer):
            raise full_queue(scheduler, num_waiting, max_reqs)
        max_tokens = self._settings.max_num_queued_tokens
        added = newcomer.num_tokens * newcomer.num_choices
        if max_tokens is not None and num_tokens + added > max_tokens:
            raise OverloadedError(
                f"{num_tokens} tokens wait, this request brings {added}, and "
                f"--max-num-queued-tokens is {max_tokens}; try again later",
                retry_after_s=_until_computed(scheduler, num_tokens + added - max_tokens),
            )

    def _check_tenant(self, scheduler: Scheduler, newcomer: Newcomer) -> None:
        terms = scheduler.config.tenant(newcomer.tenant)
        waiting = scheduler.state.waiting.backlog.of_tenant(newcomer.tenant)
        max_reqs = terms.max_num_queued_reqs
        if max_reqs is not None and waiting.num_requests >= max_reqs:
            raise full_queue_of_tenant(scheduler, waiting.num_requests, max_reqs)
        max_tokens = terms.max_num_queued_tokens
        added = newcomer.num_tokens * newcomer.num_choices
        if max_tokens is not None and waiting.num_tokens + added > max_tokens:
            raise OverloadedError(
                f"{waiting.num_tokens} tokens of this tenant wait, this request brings {added}, and its "
                f"max_num_queued_tokens is {max_tokens} (--tenants); try again later",
                retry_after_s=_until_computed(scheduler, waiting.num_tokens + added - max_tokens),
            )

    def _check_wait(self, prediction: WaitPrediction, deadline_ms: float | None) -> None:
        predicted_ms = prediction.ttft_ns / _NS_PER_MS
        limits = [
            (self._settings.max_ttft_ms, MAX_TTFT_IS),
            (deadline_ms, "its deadline (ttft_deadline_ms, deadline_ms) leaves"),
        ]
        for limit_ms, name in limits:
            if limit_ms is not None and predicted_ms > limit_ms:
                raise long_wait(prediction, limit_ms, name)


def ms_until_deadline(request: Request, now_ns: int) -> float | None:
    """Milliseconds that a request's own deadlines leave until its first token.

    ``None`` if it has none, or if one is over already: to come back later would not help, and the scheduler ends it.
    """
    deadlines = [ns for ns in (request.ttft_deadline_ns, request.deadline_ns) if ns is not None]
    left_ns = min(deadlines, default=now_ns) - now_ns
    return left_ns / _NS_PER_MS if left_ns > 0 else None


def full_queue(scheduler: Scheduler, num_waiting: int, max_reqs: int) -> OverloadedError:
    """The refusal for the sake of ``--max-num-queued-reqs``."""
    waiting = "1 request waits" if num_waiting == 1 else f"{num_waiting} requests wait"
    return OverloadedError(
        f"{waiting}, and --max-num-queued-reqs is {max_reqs}; try again later",
        retry_after_s=_until_left(scheduler, num_waiting - max_reqs + 1),
    )


def full_queue_of_tenant(scheduler: Scheduler, num_waiting: int, max_reqs: int) -> OverloadedError:
    """The refusal for the sake of a tenant's ``max_num_queued_reqs``."""
    waiting = "1 request of this tenant waits" if num_waiting == 1 else f"{num_waiting} requests of this tenant wait"
    return OverloadedError(
        f"{waiting}, and its max_num_queued_reqs is {max_reqs} (--tenants); try again later",
        retry_after_s=_until_left(scheduler, num_waiting - max_reqs + 1),
    )


def long_wait(prediction: WaitPrediction, limit_ms: float, name: str) -> OverloadedError:
    """The refusal for the sake of a limit on the time to the first token; ``name`` says which, up to its value."""
    predicted_ms = prediction.ttft_ns / _NS_PER_MS
    return OverloadedError(
        f"the first token would come in about {_in_words(predicted_ms)}, with "
        f"{prediction.num_requests_ahead} requests before this one, and {name} {_in_words(limit_ms)}; try again later",
        retry_after_s=_whole_seconds((predicted_ms - limit_ms) * _NS_PER_MS),
    )


def num_starting(scheduler: Scheduler, newcomer: Newcomer) -> int:
    """Return how many of the waiting have a slot and pages already, and only wait for the next step."""
    memory = scheduler.state.memory
    has_pages = memory.pages_for(scheduler.num_waiting_tokens + newcomer.num_tokens) <= memory.num_available
    return scheduler.num_free_slots if has_pages else 0


def _until_left(scheduler: Scheduler, num_departures: int) -> int:
    return _whole_seconds(scheduler.waits.time_to_leave_ns(scheduler.state, num_departures))


def _until_computed(scheduler: Scheduler, num_tokens: int) -> int:
    return _whole_seconds(scheduler.waits.time_to_compute_ns(scheduler.state, num_tokens))


def _in_words(time_ms: float) -> str:
    if time_ms >= 1000:
        return f"{time_ms / 1000:.1f} s"
    return f"{time_ms:.0f} ms" if time_ms >= 100 else f"{time_ms:.3g} ms"


def _whole_seconds(time_ns: float | None) -> int:
    seconds = 0 if time_ns is None else math.ceil(time_ns / _NS_PER_S)
    return min(max(seconds, _LEAST_RETRY_AFTER_S), _MOST_RETRY_AFTER_S)
