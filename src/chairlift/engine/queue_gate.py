"""How much may wait: refuses a request when the queue is as full as the operator allows.

Knows nothing of messages or of who asks; times are the caller's.
"""

import math
from collections import deque

from chairlift.config.sections import QueueSettings
from chairlift.core.scheduler import Scheduler
from chairlift.errors import OverloadedError

_NUM_DEPARTURES = 32
_MAX_RETRY_AFTER_S = 60
_NS_PER_S = 1e9


class QueueGate:
    """Enforces :class:`~chairlift.config.sections.QueueSettings`.

    A request that would go straight into a free slot is never refused. ``n`` choices wait as ``n`` requests, but are
    accepted or refused together, when the first of them arrives.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._departures_ns: deque[int] = deque(maxlen=_NUM_DEPARTURES)

    def check(self, scheduler: Scheduler, num_prompt_tokens: int) -> None:
        """Refuse a request with so many prompt tokens, all choices together, if the queue is full.

        Raises:
            OverloadedError: it is; the message names limit, value and setting.
        """
        num_waiting, num_free_slots = scheduler.num_waiting, scheduler.num_free_slots
        if num_waiting < num_free_slots:
            return
        max_reqs = self._settings.max_num_queued_reqs
        if max_reqs is not None and num_waiting >= max_reqs + num_free_slots:
            raise OverloadedError(
                f"{num_waiting} requests wait, and --max-num-queued-reqs is {max_reqs}; try again later",
                retry_after_s=self._retry_after_s(),
            )
        max_tokens = self._settings.max_num_queued_tokens
        if max_tokens is not None and scheduler.num_waiting_tokens + num_prompt_tokens > max_tokens:
            raise OverloadedError(
                f"{scheduler.num_waiting_tokens} tokens wait, this request brings {num_prompt_tokens}, and "
                f"--max-num-queued-tokens is {max_tokens}; try again later",
                retry_after_s=self._retry_after_s(),
            )

    def departed(self, now_ns: int) -> None:
        """A request left, so that one that waits can start."""
        self._departures_ns.append(now_ns)

    def _retry_after_s(self) -> int:
        """The mean pause between recent departures: when the next place in the queue should be free."""
        if len(self._departures_ns) < 2:
            return 1
        span_s = (self._departures_ns[-1] - self._departures_ns[0]) / _NS_PER_S
        return min(max(math.ceil(span_s / (len(self._departures_ns) - 1)), 1), _MAX_RETRY_AFTER_S)
