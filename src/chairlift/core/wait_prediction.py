"""How long a request that arrived now would wait for its first token.

Knows nothing of who asks, and decides nothing: no plan depends on it.

::

    arrival                       first chunk                   first token
       | slots and pages that others give up |
       | prompts before it                   | its own prompt       |
       |        the longer of the two        |
"""

from math import exp, log
from typing import Literal, NamedTuple

from chairlift.core.backlog import Amount
from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_latency import StepLatencyModel
from chairlift.core.token_budget import TokenBudget
from chairlift.core.views import WaitPrediction

_KEEP_DEPARTURE = 1 - 1 / 64
_KEEP_STEP = 0.9
_KEEP_FULL_STEP = 0.97
_KEEP_QUERIES = 0.95
_LEARNING_RATE = 1 / 16
_MOST_CORRECTION = log(4.0)
_FIRST_ERROR = log(2.0)
_QUARTER_OF_BUDGET = 1 / 3
"""What the first prompt in order takes while a shorter one is computed: a quarter, so a third of the other's tokens."""

WaitKind = Literal["none", "prompts", "slots"]


class Newcomer(NamedTuple):
    """A request that might arrive: its prompt tokens, tier and tenant."""

    num_tokens: int
    tier: int = 0
    tenant: str = ""


class WaitPredictor:
    """Predicts from what waits, what runs, and how fast both went lately; and learns from how wrong it was.

    - *Slots.* The requests before the newcomer, less the free slots, must leave. In how many request-seconds one leaves
      was counted over the last 64 that did, so a batch that fills up is taken into account at once. Missing pages are
      turned into departures by the mean pages of a running request. Less urgent requests that would be displaced count
      as free.
    - *Prompts.* The tokens before it, less the part that the prefix cache usually saves, at the speed of recent steps
      that were full; before there were any, at that of the latency model.
    - *Learning.* For each kind of wait, the mean ratio of what happened to what was expected corrects the next
      prediction, by a factor of 4 at most.

    ``None`` means that nothing is known yet, because no step ran or nobody has left.
    """

    def __init__(self, latency: StepLatencyModel) -> None:
        self._latency = latency
        self._departures = 0.0
        self._residence_ns = 0.0
        self._num_departures = 0
        self._step_ns = 0.0
        self._prompt_tokens = 0.0
        self._prompt_ns = 0.0
        self._hit_tokens = 0.0
        self._query_tokens = 0.0
        self._num_hits = self._num_queries = 0
        self._corrections: dict[WaitKind, float] = {"none": 0.0, "prompts": 0.0, "slots": 0.0}
        self._error = _FIRST_ERROR
        self._num_checked = 0

    @property
    def error_factor(self) -> float:
        """How far off recent predictions were on average, as a factor: 1.2 means 20 % too long or too short."""
        return exp(self._error)

    @property
    def num_checked(self) -> int:
        """Predictions that were compared with what happened."""
        return self._num_checked

    def step_ended(self, state: SchedulerState, budget: TokenBudget, duration_ns: int) -> None:
        """A step ran and was committed."""
        num_departures = state.num_departures - self._num_departures
        if num_departures:
            self._num_departures = state.num_departures
            keep = _KEEP_DEPARTURE**num_departures
            self._departures = self._departures * keep + num_departures
            self._residence_ns *= keep
        self._residence_ns += (len(state.running) + num_departures) * duration_ns
        self._step_ns += (1 - _KEEP_STEP) * (duration_ns - self._step_ns) if self._step_ns else duration_ns
        if budget.num_prefill_tokens and budget.num_left < state.memory.page_size:
            self._prompt_tokens = self._prompt_tokens * _KEEP_FULL_STEP + budget.num_prefill_tokens
            self._prompt_ns = self._prompt_ns * _KEEP_FULL_STEP + duration_ns
        if state.num_query_tokens != self._num_queries:
            queried, hit = state.num_query_tokens - self._num_queries, state.num_hit_tokens - self._num_hits
            self._query_tokens = self._query_tokens * _KEEP_QUERIES + queried
            self._hit_tokens = self._hit_tokens * _KEEP_QUERIES + hit
            self._num_queries, self._num_hits = state.num_query_tokens, state.num_hit_tokens

    def first_token(self, request: Request, now_ns: int) -> None:
        """A request for which a prediction was made at its arrival got its first token."""
        expected = request.expected_wait
        actual_ns = now_ns - request.arrival_ns
        if expected is None or expected.raw_ns <= 0 or actual_ns <= 0:
            return
        kind = expected.kind
        self._num_checked += 1
        error = min(abs(log(actual_ns / expected.ttft_ns)), 2 * _MOST_CORRECTION)
        self._error += _LEARNING_RATE * (error - self._error)
        correction = self._corrections[kind] + _LEARNING_RATE * (
            log(actual_ns / expected.raw_ns) - self._corrections[kind]
        )
        self._corrections[kind] = min(max(correction, -_MOST_CORRECTION), _MOST_CORRECTION)

    def predict(self, state: SchedulerState, newcomer: Newcomer) -> WaitPrediction | None:
        """Predict for a request that would arrive now. Changes nothing."""
        ahead = find_ahead(state, newcomer)
        num_missing = count_missing_departures(state, newcomer, ahead)
        speed = self._prompt_speed(state)
        leave_ns = self.time_to_leave_ns(state, num_missing)
        if speed is None or leave_ns is None:
            return None
        uncached = 1.0 - self._hit_tokens / self._query_tokens if self._query_tokens else 1.0
        own_tokens = newcomer.num_tokens * uncached
        before_ns = _tokens_before(state, ahead, own_tokens, uncached, is_queued=num_missing > 0) / speed
        own_ns = max(own_tokens / speed, self._step_ns)
        raw_ns = round(max(leave_ns, before_ns) + own_ns + self._step_ns / 2)
        kind: WaitKind = "none"
        if before_ns > 0 or leave_ns > 0:
            kind = "slots" if leave_ns > before_ns else "prompts"
        ttft_ns = round(raw_ns * exp(self._corrections[kind]))
        return WaitPrediction(ttft_ns, raw_ns, kind, ahead.num_requests, ahead.num_tokens, num_missing)

    def time_to_leave_ns(self, state: SchedulerState, num_departures: int) -> float | None:
        """Return in what time so many running requests should leave; ``None`` if nobody has left yet."""
        if num_departures <= 0:
            return 0.0
        if not self._departures or not state.running:
            return None
        return num_departures * self._residence_ns / (self._departures * len(state.running))

    def time_to_compute_ns(self, state: SchedulerState, num_tokens: int) -> float | None:
        """Return in what time so many prompt tokens should be computed; ``None`` if no step has run yet."""
        speed = self._prompt_speed(state)
        return None if speed is None else num_tokens / speed

    def _prompt_speed(self, state: SchedulerState) -> float | None:
        """Prompt tokens per nanosecond."""
        if self._prompt_ns:
            return self._prompt_tokens / self._prompt_ns
        if not self._latency.is_ready:
            return None
        limit, num_decodes = state.config.max_num_batched_tokens, len(state.decoding)
        return (limit - num_decodes) / max(self._latency.predict_ns(limit, state.num_decode_context_tokens), 1)


def find_ahead(state: SchedulerState, newcomer: Newcomer) -> Amount:
    """What stands before the newcomer: its own tier and more urgent ones, in turn with other tenants under ``fair``."""
    backlog = state.waiting.backlog
    if state.config.tenant_order == "fair":
        return backlog.before_in_turn(
            newcomer.tier, newcomer.tenant, newcomer.num_tokens, lambda name: state.config.tenant(name).weight
        )
    return backlog.before(newcomer.tier)


def starts_at_once(state: SchedulerState, newcomer: Newcomer, num_requests: int = 1) -> bool:
    """Whether so many of the newcomer would get slots and pages in the next step, with all that stands before them."""
    return count_missing_departures(state, newcomer, find_ahead(state, newcomer), num_requests) == 0


def count_missing_departures(
    state: SchedulerState, newcomer: Newcomer, ahead: Amount, num_requests: int = 1
) -> int:
    """Return how many running requests must leave before the newcomer can start; those it displaces are not counted."""
    running, memory = state.running, state.memory
    most = state.config.max_preemptions
    displaced = [
        request
        for request in running.values()
        if request.priority > newcomer.tier and request.num_preemptions < most and not request.is_promoted
    ]
    num_free = state.config.max_num_seqs - len(running) + len(displaced)
    num_missing = max(0, ahead.num_requests + num_requests - num_free)
    num_pages = memory.num_available + sum(len(request.pages) for request in displaced)
    if running:
        num_pages -= round(state.config.watermark * memory.pool.num_pages)
    needed = memory.pages_for(ahead.num_tokens) + memory.pages_for(newcomer.num_tokens * num_requests)
    if needed > num_pages and running:
        pages_each = max(memory.pool.num_leased / len(running), 1.0)
        num_missing = max(num_missing, -int(-(needed - num_pages) // pages_each))
    return num_missing


def _tokens_before(
    state: SchedulerState, ahead: Amount, own_tokens: float, uncached: float, *, is_queued: bool
) -> float:
    """Prompt tokens that are computed before the newcomer's last one, its own not counted."""
    running = [r.num_tokens - r.num_scheduled_tokens for r in state.running.values() if not r.is_decoding]
    before = ahead.num_tokens * uncached
    if is_queued or not state.config.enable_chunked_prefill:
        return before + sum(running)
    # Shorter prompts pass longer ones, of which only the first in order keeps its quarter of the budget.
    mean = before / ahead.num_requests if ahead.num_requests else 0.0
    shorter = sum(left for left in running if left <= own_tokens)
    is_behind_longer = any(left > own_tokens for left in running)
    if mean <= own_tokens:
        shorter += before
    else:
        is_behind_longer = True
    return shorter + (own_tokens * _QUARTER_OF_BUDGET if is_behind_longer else 0.0)
