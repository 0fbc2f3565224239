"""How long a step takes, learnt from the steps that ran: ``t = c + a * tokens + b * context``.

Knows nothing of clocks or schedules: it is told sizes and durations, and equal calls give equal estimates.

``tokens`` are the rows of the step, ``context`` the KV tokens that its rows read: a decode at context ``n`` reads
``n``, a chunk of ``L`` tokens that starts at ``x`` reads ``L * x + L * (L + 1) / 2``. So ``c`` is what every step costs
(reading the weights, launching kernels), ``a`` what a token costs, and ``b`` what it costs to look back.
"""

from math import sqrt
from statistics import median

_Sums = list[float]
"""Weighted sums of one stratum: the six products of (1, tokens, context), then their three products with the time."""

_TOKENS_UNIT = 64.0
_CONTEXT_UNIT = 16384.0
_NS_PER_MS = 1e6
_NUM_FIRST = 16
"""Steps that are kept and fitted together before there is any estimate."""
_FORGETTING = 0.98
"""Weight that a step keeps when the next one of about its size comes: the last fifty count."""
_FIT_EVERY = 8
_NUM_HUBER_ROUNDS = 6
_HUBER = 3.0
_ERROR_RATE = 0.05
_LEAST_ERROR = 0.01
_MOST_ERROR = 1.0
_DRIFT_RATE = 1 / 8
_MOST_SURPRISE = 1.5
"""Factor by which one step can seem slower or faster to the drift."""
_MOST_DRIFT = 8.0
_RIDGE = 1e-7
_MOST_GROWTH = 2
_UNBOUNDED_TOKENS = 1 << 30
_NUM_STRATA = 32
_SHORTEST_MS = 1e-6
_LONGEST_MS = 1e9
_SUBSETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))


class StepLatencyModel:
    """Least squares with forgetting, on relative errors, with coefficients that are never negative.

    - Steps are forgotten only when others of about their size (a power of two) come in. An hour of decodes does not
      wipe out what is known about prompts.
    - A step that is far off counts by the size of the usual error, not by its own: a first step that compiles, or a
      machine that stalls, moves the estimate as little as a step that was three errors off. If the machine really
      became slower, every step says so, and the usual error grows until they count.
    - All coefficients are scaled by one drift factor that follows the last few steps, for what changes within seconds:
      a neighbour on the machine, a clock rate, a kind of step that the three coefficients fit badly.
    - The estimate changes at fixed counts of steps and never because somebody asks, so that a replay agrees.
    """

    def __init__(self) -> None:
        self._first: list[tuple[float, float, float]] = []
        self._strata: list[_Sums | None] = [None] * _NUM_STRATA
        self._c = self._a = self._b = 0.0
        self._drift = 1.0
        self._error = _LEAST_ERROR
        self._num_observed = 0
        self._largest_tokens = 0

    @property
    def is_ready(self) -> bool:
        """Whether enough steps were seen to say anything."""
        return self._num_observed >= _NUM_FIRST

    @property
    def num_observed(self) -> int:
        """Steps taken in so far."""
        return self._num_observed

    @property
    def relative_error(self) -> float:
        """Mean error of recent estimates, as a part of the estimate; single stalls count little."""
        return self._error

    @property
    def coefficients_ns(self) -> tuple[float, float, float]:
        """``(c, a, b)``: nanoseconds per step, per token and per token of context; none is negative."""
        return (
            self._drift * self._c * _NS_PER_MS,
            self._drift * self._a * _NS_PER_MS / _TOKENS_UNIT,
            self._drift * self._b * _NS_PER_MS / _CONTEXT_UNIT,
        )

    def observe(self, num_tokens: int, num_context_tokens: int, duration_ns: int) -> None:
        """Take in a step that ran. One without tokens or without a duration says nothing and is ignored."""
        if num_tokens <= 0 or duration_ns <= 0:
            return
        tokens, context = num_tokens / _TOKENS_UNIT, num_context_tokens / _CONTEXT_UNIT
        time_ms = min(duration_ns / _NS_PER_MS, _LONGEST_MS)
        self._largest_tokens = max(self._largest_tokens, num_tokens)
        self._num_observed += 1
        if self._num_observed < _NUM_FIRST:
            self._first.append((tokens, context, time_ms))
            return
        if self._num_observed == _NUM_FIRST:
            self._first.append((tokens, context, time_ms))
            self._fit_first()
            return
        expected_ms = max(self._c + self._a * tokens + self._b * context, _SHORTEST_MS)
        error = abs(time_ms - expected_ms) / expected_ms
        limit = _HUBER * self._error
        weight = (1.0 if error <= limit else limit / error) / (expected_ms * expected_ms)
        self._error += _ERROR_RATE * (min(error, 1.5 * limit) - self._error)
        self._error = min(max(self._error, _LEAST_ERROR), _MOST_ERROR)
        surprise = min(max(time_ms / (expected_ms * self._drift), 1 / _MOST_SURPRISE), _MOST_SURPRISE)
        drift = self._drift * (1 + _DRIFT_RATE * (surprise - 1))
        self._drift = min(max(drift, 1 / _MOST_DRIFT), _MOST_DRIFT)
        self._add(tokens, context, time_ms, weight)
        if self._num_observed % _FIT_EVERY == 0:
            self._fit()

    def predict_ns(self, num_tokens: int, num_context_tokens: int) -> int:
        """Estimate the duration of a step; 0 before :attr:`is_ready`. Never less for more tokens or more context."""
        time_ms = self._c + self._a * (num_tokens / _TOKENS_UNIT) + self._b * (num_context_tokens / _CONTEXT_UNIT)
        return round(time_ms * self._drift * _NS_PER_MS)

    def tokens_within(
        self, target_ns: float, num_context_tokens: int, *, num_decodes: int = 0, prompt_start: int = 0
    ) -> int:
        """Return how many tokens a step may have to last ``target_ns``, its decodes included; at least 0.

        At most twice the tokens of the largest step seen yet: the estimate is not trusted further out.

        Args:
            target_ns: how long the step may take.
            num_context_tokens: context that its decodes read.
            num_decodes: how many these are.
            prompt_start: where the chunks begin that fill the rest, since their tokens read what is before them.
        """
        per_step, per_token, per_context = self.coefficients_ns
        left_ns = target_ns - per_step - per_token * num_decodes - per_context * num_context_tokens
        limit = self._largest_tokens * _MOST_GROWTH if self._largest_tokens else _UNBOUNDED_TOKENS
        if left_ns < 0:
            # Not even the decodes fit; say how many of them would.
            least_ns = target_ns - per_step - per_context * num_context_tokens
            return 0 if least_ns <= 0 or per_token == 0 else min(int(least_ns / per_token), num_decodes, limit)
        # Chunks of together L tokens: per_token * L + per_context * (L * start + L * L / 2) <= left_ns.
        slope_ns = per_token + per_context * (prompt_start + 0.5)
        root_ns = slope_ns + sqrt(slope_ns * slope_ns + 2 * per_context * left_ns)
        if root_ns * _UNBOUNDED_TOKENS <= 2 * left_ns:
            return limit
        return min(num_decodes + int(2 * left_ns / root_ns), limit)

    def _add(self, tokens: float, context: float, time_ms: float, weight: float) -> None:
        stratum = min(round(tokens * _TOKENS_UNIT).bit_length(), _NUM_STRATA - 1)
        sums = self._strata[stratum]
        if sums is None:
            self._strata[stratum] = _products(tokens, context, time_ms, weight)
            return
        keep, wt, wc = _FORGETTING, weight * tokens, weight * context
        sums[0] = sums[0] * keep + weight
        sums[1] = sums[1] * keep + wt
        sums[2] = sums[2] * keep + wc
        sums[3] = sums[3] * keep + wt * tokens
        sums[4] = sums[4] * keep + wt * context
        sums[5] = sums[5] * keep + wc * context
        sums[6] = sums[6] * keep + weight * time_ms
        sums[7] = sums[7] * keep + wt * time_ms
        sums[8] = sums[8] * keep + wc * time_ms

    def _fit(self) -> None:
        total = [0.0] * 9
        for sums in self._strata:
            if sums is not None:
                total = [left + right for left, right in zip(total, sums, strict=True)]
        self._c, self._a, self._b = _solve(total)

    def _fit_first(self) -> None:
        """Fit the first steps together: more than one may be an outlier, and which ones shows only then."""
        weights = [1.0 / (time_ms * time_ms) for _, _, time_ms in self._first]
        errors: list[float] = []
        for _ in range(_NUM_HUBER_ROUNDS):
            total = [0.0] * 9
            for (tokens, context, time_ms), weight in zip(self._first, weights, strict=True):
                added = _products(tokens, context, time_ms, weight)
                total = [left + right for left, right in zip(total, added, strict=True)]
            self._c, self._a, self._b = _solve(total)
            expected = [max(self._c + self._a * t + self._b * k, _SHORTEST_MS) for t, k, _ in self._first]
            errors = [abs(step[2] - e) / e for step, e in zip(self._first, expected, strict=True)]
            self._error = min(max(median(errors), _LEAST_ERROR), _MOST_ERROR)
            limit = _HUBER * self._error
            weights = [
                (1.0 if error <= limit else limit / error) / (e * e) for error, e in zip(errors, expected, strict=True)
            ]
        for (tokens, context, time_ms), weight in zip(self._first, weights, strict=True):
            self._add(tokens, context, time_ms, weight)
        self._first.clear()


def _products(tokens: float, context: float, time_ms: float, weight: float) -> _Sums:
    wt, wc = weight * tokens, weight * context
    return [
        weight,
        wt,
        wc,
        wt * tokens,
        wt * context,
        wc * context,
        weight * time_ms,
        wt * time_ms,
        wc * time_ms,
    ]


def _solve(sums: _Sums) -> tuple[float, float, float]:
    """Return the coefficients of least weighted squares among those that are not negative.

    The best of all subsets whose own solution is not negative: with three coefficients that is the exact answer.
    Features are brought to one scale first, and a tiny ridge shares out between features that never moved apart.
    """
    s11, s1t, s1c, stt, stc, scc, s1y, sty, scy = sums
    scales = [1.0 / sqrt(value) if value > 0.0 else 0.0 for value in (s11, stt, scc)]
    one, tokens, context = scales
    matrix = (
        (1.0 + _RIDGE, s1t * one * tokens, s1c * one * context),
        (s1t * one * tokens, 1.0 + _RIDGE, stc * tokens * context),
        (s1c * one * context, stc * tokens * context, 1.0 + _RIDGE),
    )
    right = (s1y * one, sty * tokens, scy * context)
    best, best_gain = (0.0, 0.0, 0.0), 0.0
    for subset in _SUBSETS:
        found = _solve_subset(matrix, right, subset)
        if found is None or min(found) < 0.0:
            continue
        gain = sum(found[i] * right[i] for i in range(3))
        if gain > best_gain:
            best, best_gain = found, gain
        if len(subset) == 3:
            break
    return best[0] * one, best[1] * tokens, best[2] * context


def _solve_subset(
    matrix: tuple[tuple[float, float, float], ...], right: tuple[float, float, float], subset: tuple[int, ...]
) -> tuple[float, float, float] | None:
    """Solve the equations of these coefficients, the others being 0; ``None`` if they do not determine them."""
    rows = [[matrix[i][j] for j in subset] + [right[i]] for i in subset]
    size = len(subset)
    for pivot in range(size):
        # Positive definite by the ridge: no pivoting is needed.
        if rows[pivot][pivot] <= 0.0:
            return None
        for row in range(pivot + 1, size):
            factor = rows[row][pivot] / rows[pivot][pivot]
            for column in range(pivot, size + 1):
                rows[row][column] -= factor * rows[pivot][column]
    solution = [0.0, 0.0, 0.0]
    for pivot in range(size - 1, -1, -1):
        known = sum(rows[pivot][k] * solution[subset[k]] for k in range(pivot + 1, size))
        solution[subset[pivot]] = (rows[pivot][size] - known) / rows[pivot][pivot]
    return solution[0], solution[1], solution[2]
