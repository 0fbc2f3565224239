"""Which queues are full, for whoever has to refuse requests without asking the engine.

Knows nothing of who asks. All that is said here holds for a newcomer of one token, so it holds for every other one too:
whoever brings more has no earlier place.
"""

from collections.abc import Iterator
from itertools import islice

from chairlift.config.sections import QueueSettings
from chairlift.core.scheduler import Scheduler
from chairlift.core.views import WaitPrediction
from chairlift.core.wait_prediction import Newcomer, Standing, find_standing
from chairlift.engine.queue_gate import MAX_TTFT_IS, full_queue, full_queue_of_tenant, long_wait, num_starting
from chairlift.errors import OverloadedError
from chairlift.observability.step_stats import FullQueue

_MOST_TIERS = 8
"""Tiers that are told apart; of more, the most urgent ones are never said to be full."""
_MOST_TENANTS = 64
"""Tenants whose queues are looked at; newcomers of others are the engine's to refuse."""
_WAIT_INTERVAL_NS = 50_000_000
"""Time between two predictions of the least wait."""
_NS_PER_MS = 1e6


class FullQueueFinder:
    """Finds the queues that are full, or at least half full: what is on its way may fill them.

    Caps on tokens and deadlines of requests depend on the request, and are not among them.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._wait: FullQueue | None = None
        self._wait_due_ns = 0

    def find(self, scheduler: Scheduler, now_ns: int) -> tuple[FullQueue, ...]:
        """Find them in the order in which the gate looks at them; cheap as long as little waits."""
        if not scheduler.has_unfinished:
            return ()
        found = list(_find_capped(scheduler, self._settings.max_num_queued_reqs))
        max_ttft_ms = self._settings.max_ttft_ms
        if max_ttft_ms is not None and scheduler.num_waiting:
            if now_ns >= self._wait_due_ns:
                self._wait = _find_long_wait(scheduler, max_ttft_ms)
                self._wait_due_ns = now_ns + _WAIT_INTERVAL_NS
            if self._wait is not None:
                found.append(self._wait)
        return tuple(found)


def _find_capped(scheduler: Scheduler, max_reqs: int | None) -> Iterator[FullQueue]:
    tenants = list(_filling_tenants(scheduler))
    num_waiting = scheduler.num_waiting
    is_filling = max_reqs is not None and 2 * num_waiting >= max_reqs
    from_tier = _Places(scheduler).full_from_tier if is_filling or tenants else None
    if from_tier is None:
        return
    if is_filling and max_reqs is not None:
        most = max_reqs + num_starting(scheduler, Newcomer(1, tier=from_tier))
        error = full_queue(scheduler, max(num_waiting, most), max_reqs)
        yield _described(error, most - num_waiting, from_tier)
    for tenant, num_of_tenant, most in tenants:
        error = full_queue_of_tenant(scheduler, max(num_of_tenant, most), most)
        yield _described(error, most - num_of_tenant, from_tier, tenant)


class _Places:
    """Which tiers have a place to start at once. The more urgent a tier, the more of them it has."""

    def __init__(self, scheduler: Scheduler) -> None:
        state = scheduler.state
        self._state = state
        self._is_fair = state.config.tenant_order == "fair"
        given = {request.priority for request in state.running.values()} | state.waiting.backlog.tiers
        # Places change from tier to tier where something runs or waits; with turns, also behind what waits.
        edges = given | {tier + 1 for tier in given} if self._is_fair else given
        self.tiers = [min(edges) - 1, *sorted(edges)][-_MOST_TIERS:]

    def standing(self, tier: int) -> Standing:
        """Where the best placed newcomer of a tier would stand: if tenants take turns, one that waits for nothing."""
        ahead = self._state.waiting.backlog.before(tier - 1 if self._is_fair else tier)
        return find_standing(self._state, Newcomer(1, tier=tier), ahead)

    @property
    def full_from_tier(self) -> int | None:
        """The most urgent tier without a place; ``None`` if each has one."""
        return next((tier for tier in self.tiers if not self.standing(tier).has_place), None)


def _filling_tenants(scheduler: Scheduler) -> Iterator[tuple[str, int, int]]:
    """Tenants with a cap of which half is used: how many requests wait, and the cap."""
    config = scheduler.config
    if all(terms.max_num_queued_reqs is None for terms in (config.default_tenant, *config.tenants.values())):
        return
    for tenant, amount in islice(scheduler.state.waiting.backlog.by_tenant(), _MOST_TENANTS):
        most = config.tenant(tenant).max_num_queued_reqs
        if most is not None and 2 * amount.num_requests >= most:
            yield tenant, amount.num_requests, most


def _find_long_wait(scheduler: Scheduler, max_ttft_ms: float) -> FullQueue | None:
    """From which tier on everybody would wait too long, whatever the size of the prompt."""
    places = _Places(scheduler)
    found: FullQueue | None = None
    for tier in reversed(places.tiers):
        standing = places.standing(tier)
        shortest = None if standing.has_place else _predict_shortest(scheduler, tier, standing)
        if shortest is None or shortest.ttft_ns <= max_ttft_ms * _NS_PER_MS:
            break
        found = _described(long_wait(shortest, max_ttft_ms, MAX_TTFT_IS), 0, tier)
    return found


def _predict_shortest(scheduler: Scheduler, tier: int, standing: Standing) -> WaitPrediction | None:
    """The shortest wait of prompts of all sizes; predictions learn by powers of two, and grow within each."""
    shortest: WaitPrediction | None = None
    num_tokens = 1
    while num_tokens <= scheduler.config.max_model_len:
        prediction = scheduler.waits.predict(scheduler.state, Newcomer(num_tokens, tier=tier), standing)
        if prediction is None:
            return None
        if shortest is None or prediction.ttft_ns < shortest.ttft_ns:
            shortest = prediction
        num_tokens *= 2
    return shortest


def _described(error: OverloadedError, num_places: int, from_tier: int, tenant: str | None = None) -> FullQueue:
    return FullQueue(max(num_places, 0), from_tier, error.message, error.retry_after_s, tenant)
