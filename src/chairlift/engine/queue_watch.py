"""What the API process knows of the engine's queues: who would be refused is told so without asking the engine.

Knows nothing of prompts or of HTTP.

::

    engine's last report: num_places left ──┐
                                            ├──> a place is left: ask the engine, which decides
    sent since, not in the report yet ──────┘    none is left: the engine's own words, at once

A report is as old as a step and its way here. So a request may be refused for whose sake something left meanwhile, and,
while others are on their way that the engine will not let wait, as many more as those are. Never is one refused for
longer than until the next report; nor because of one that is a second old, from an engine that plans nothing or takes
so long for a step.
"""

from collections import deque

from chairlift.errors import OverloadedError
from chairlift.observability.step_stats import FullQueue, StepStats

_MAX_AGE_NS = 1_000_000_000


class QueueWatch:
    """Follows what is sent to one engine process, and what it reports."""

    def __init__(self) -> None:
        self._full_queues: tuple[FullQueue, ...] = ()
        self._reported_ns = 0
        self._num_received = 0
        self._unreported: deque[tuple[str, int]] = deque()
        self._num_unreported = 0

    def sent(self, tenant: str, num_choices: int) -> None:
        """A request is on its way to the engine."""
        self._unreported.append((tenant, num_choices))
        self._num_unreported += num_choices

    def reported(self, stats: StepStats, now_ns: int) -> None:
        """The engine said what it has received, and which queues are full."""
        num_new = stats.num_received - self._num_received
        self._num_received = stats.num_received
        while num_new > 0 and self._unreported:
            _, num_choices = self._unreported.popleft()
            num_new -= num_choices
            self._num_unreported -= num_choices
        self._full_queues = stats.full_queues
        self._reported_ns = now_ns

    def may_refuse(self, now_ns: int) -> bool:
        """Whether anybody at all would be refused now, or soon."""
        return bool(self._full_queues) and now_ns - self._reported_ns < _MAX_AGE_NS

    def check(self, tier: int, tenant: str, now_ns: int) -> None:
        """Refuse a newcomer that the engine would refuse.

        Raises:
            OverloadedError: it would.
        """
        error = self.find_refusal(tier, tenant, now_ns)
        if error is not None:
            raise error

    def find_refusal(self, tier: int, tenant: str, now_ns: int) -> OverloadedError | None:
        """What the engine would say to a newcomer that it refuses; ``None`` if the engine has to be asked."""
        if not self.may_refuse(now_ns):
            return None
        for queue in self._full_queues:
            if tier < queue.from_tier or (queue.tenant is not None and queue.tenant != tenant):
                continue
            if not queue.num_places or self._num_on_the_way(queue.tenant) >= queue.num_places:
                return OverloadedError(queue.message, retry_after_s=queue.retry_after_s)
        return None

    def _num_on_the_way(self, tenant: str | None) -> int:
        if tenant is None:
            return self._num_unreported
        return sum(num_choices for sender, num_choices in self._unreported if sender == tenant)
