"""How long a request that arrived now would wait for its first token.

Knows nothing of who asks, and decides nothing: no plan depends on it.

::

    arrival                       first chunk                   first token
       | slots and pages that others give up |
       | prompts before it                   | its own prompt       |
       |        the longer of the two        |
"""

from math import ceil, exp, log
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
_MOST_CORRECTION = log(8.0)
_FIRST_ERROR = log(2.0)
_PART_OF_FIRST = 3
"""The first prompt in order keeps a quarter of the budget: a third of what a shorter one gets beside it."""

WaitKind = Literal["none", "prompts", "slots"]


class _Correction(NamedTuple):
    """Mean logarithm of (what happened / what was expected), and how many went into it."""

    log_ratio: float
    num_seen: int

    def learn(self, log_ratio: float) -> "_Correction":
        rate = max(_LEARNING_RATE, 1 / (self.num_seen + 2))
        learnt = self.log_ratio + rate * (log_ratio - self.log_ratio)
        return _Correction(min(max(learnt, -_MOST_CORRECTION), _MOST_CORRECTION), self.num_seen + 1)


_NO_CORRECTION = _Correction(0.0, 0)


class Newcomer(NamedTuple):
    """A request that might arrive: prompt tokens of each of its choices, their number, tier and tenant."""

    num_tokens: int
    num_choices: int = 1
    tier: int = 0
    tenant: str = ""


class Standing(NamedTuple):
    """Where a newcomer would stand: what is before it, and how many who run must leave before it can start."""

    ahead: Amount
    num_missing_departures: int
    num_prompt_tokens_before: int
    """Prompt tokens that are computed before its own, cached ones included."""

    @property
    def has_place(self) -> bool:
        """Whether there are slots and pages for it, and for all that stands before it."""
        return self.num_missing_departures == 0


class WaitPredictor:
    """Predicts from what waits, what runs, and how fast both went lately; and learns from how wrong it was.

    - *Slots.* The requests before the newcomer, less the free slots, must leave. In how many request-seconds one leaves
      was counted over the last 64 that did, so a batch that fills up is taken into account at once. Missing pages are
      turned into departures by the mean pages of a running request. Less urgent requests that would be displaced count
      as free.
    - *Prompts.* The tokens before it, less the part that the prefix cache usually saves, at the speed of recent steps
      that were full; before there were any, at that of the latency model.
    - *Learning.* For each kind of wait and size of prompt (a power of two), the mean ratio of what happened to what was
      expected corrects the next prediction. So it learns what policies do to short and to long prompts.

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
        self._corrections: dict[tuple[WaitKind, int], _Correction] = {}
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
        self._num_checked += 1
        error = min(abs(log(actual_ns / expected.ttft_ns)), 2 * _MOST_CORRECTION)
        self._error += _LEARNING_RATE * (error - self._error)
        key = (expected.kind, request.num_prompt_tokens.bit_length())
        correction = self._corrections.get(key, _NO_CORRECTION)
        self._corrections[key] = correction.learn(log(actual_ns / expected.raw_ns))

    def predict(
        self, state: SchedulerState, newcomer: Newcomer, standing: Standing | None = None
    ) -> WaitPrediction | None:
        """Predict for a request that would arrive now, whose standing may be known already. Changes nothing."""
        ahead, num_missing, num_tokens_before = standing or find_standing(state, newcomer)
        speed = self._prompt_speed(state)
        leave_ns = self.time_to_leave_ns(state, num_missing)
        if speed is None or leave_ns is None:
            return None
        uncached = 1.0 - self._hit_tokens / self._query_tokens if self._query_tokens else 1.0
        own_tokens = newcomer.num_tokens * uncached
        before_ns = num_tokens_before * uncached / speed
        own_ns = max(own_tokens / speed, self._step_ns)
        raw_ns = round(max(leave_ns, before_ns) + own_ns + self._step_ns / 2)
        kind: WaitKind = "none"
        if before_ns > 0 or leave_ns > 0:
            kind = "slots" if leave_ns > before_ns else "prompts"
        correction = self._corrections.get((kind, newcomer.num_tokens.bit_length()), _NO_CORRECTION)
        ttft_ns = max(1, round(raw_ns * exp(correction.log_ratio)))
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


def find_standing(state: SchedulerState, newcomer: Newcomer, ahead: Amount | None = None) -> Standing:
    """Find where a newcomer would stand, or what it means to stand behind ``ahead`` if that is known.

    Hits in the prefix cache are not looked up, so pages are counted in full.
    """
    ahead = ahead if ahead is not None else _find_ahead(state, newcomer)
    num_missing = _count_missing_departures(state, newcomer, ahead)
    return Standing(ahead, num_missing, _count_tokens_before(state, newcomer, ahead, is_queued=num_missing > 0))


def _find_ahead(state: SchedulerState, newcomer: Newcomer) -> Amount:
    backlog = state.waiting.backlog
    if state.config.tenant_order == "fair":
        return backlog.before_in_turn(
            newcomer.tier, newcomer.tenant, newcomer.num_tokens, lambda name: state.config.tenant(name).weight
        )
    return backlog.before(newcomer.tier)


def starts_at_once(state: SchedulerState, standing: Standing) -> bool:
    """Whether the newcomer's first chunk would be in the next step, or in the one after it."""
    num_prompt_tokens = state.config.max_num_batched_tokens - len(state.decoding)
    return standing.has_place and standing.num_prompt_tokens_before <= num_prompt_tokens


def _count_missing_departures(state: SchedulerState, newcomer: Newcomer, ahead: Amount) -> int:
    """Return how many running requests must leave before the newcomer can start; those it displaces do not count."""
    running, memory = state.running, state.memory
    most = state.config.max_preemptions
    displaced = [
        request
        for request in running.values()
        if request.priority > newcomer.tier and request.num_displacements < most and not request.is_promoted
    ]
    num_free = state.config.max_num_seqs - len(running) + len(displaced)
    num_missing = max(0, ahead.num_requests + newcomer.num_choices - num_free)
    num_pages = memory.num_available + sum(len(request.pages) for request in displaced)
    if running:
        num_pages -= round(state.config.watermark * memory.pool.num_pages)
    needed = memory.pages_for(ahead.num_tokens) + memory.pages_for(newcomer.num_tokens) * newcomer.num_choices
    if needed > num_pages and running:
        pages_each = max(memory.pool.num_leased / len(running), 1.0)
        num_missing = max(num_missing, ceil((needed - num_pages) / pages_each))
    return num_missing


def _count_tokens_before(state: SchedulerState, newcomer: Newcomer, ahead: Amount, *, is_queued: bool) -> int:
    """Prompt tokens that are computed before the newcomer's last one, its own not counted."""
    running = [r.num_tokens - r.num_scheduled_tokens for r in state.running.values() if not r.is_decoding]
    if is_queued or not state.config.enable_chunked_prefill:
        return ahead.num_tokens + sum(running)
    # Shorter prompts pass longer ones, of which only the first in order keeps its quarter of the budget.
    num_tokens = newcomer.num_tokens
    shorter = sum(left for left in running if left <= num_tokens)
    has_longer = any(left > num_tokens for left in running)
    if ahead.num_tokens <= ahead.num_requests * num_tokens:
        shorter += ahead.num_tokens
    else:
        has_longer = True
    return shorter + (num_tokens // _PART_OF_FIRST if has_longer else 0)
