"""Fits the coefficients of a latency model to timed steps: least relative squares, none of them negative.

Knows nothing of how the steps were timed.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from math import fsum
from typing import NamedTuple

from chairlift.errors import ConfigurationError
from chairlift.simulator.latency.measured import Coefficients, FitError
from chairlift.simulator.latency.model import StepShape

_LEAST_STEP = 1.2
"""By how much two neighbouring knots differ at least."""
_TERMS: tuple[tuple[str, Callable[[StepShape], int]], ...] = (
    ("decode_ns", lambda shape: shape.num_decodes),
    ("decode_context_ns", lambda shape: shape.num_decode_context_tokens),
    ("chunk_ns", lambda shape: shape.num_chunks),
    ("chunk_pair_ns", lambda shape: shape.num_chunk_pairs),
    ("chunk_context_ns", lambda shape: shape.num_chunk_context_tokens),
    ("sampled_ns", lambda shape: shape.num_sampled),
    ("copied_page_ns", lambda shape: shape.num_pages_out + shape.num_pages_in),
)
_HOLD_OUT_EVERY = 5
_NUM_ROUNDS = 4000
_NUM_REWEIGHTINGS = 4
_ENOUGH = 1e-10


class TimedStep(NamedTuple):
    """A step that ran, and how long it took."""

    shape: StepShape
    duration_ns: float


def fit_steps(steps: Sequence[TimedStep]) -> tuple[Coefficients, FitError]:
    """Fit all steps, and say how far off the fit is; every fifth is held out once to see what it says about others.

    Raises:
        ConfigurationError: there are too few steps to fit anything.
    """
    knots = choose_knots([step.shape.num_rows for step in steps])
    if len(steps) < len(knots) + len(_TERMS):
        raise ConfigurationError(f"{len(steps)} timed steps are too few for {len(knots) + len(_TERMS)} coefficients")
    coefficients = _fit(steps, knots)
    errors = _errors(steps, coefficients, knots)
    held_out: list[float] = []
    for part in range(_HOLD_OUT_EVERY):
        kept = [step for index, step in enumerate(steps) if index % _HOLD_OUT_EVERY != part]
        held_out += _errors(steps[part::_HOLD_OUT_EVERY], _fit(kept, knots), knots)
    named = {name: value for (name, _), value in zip(_TERMS, coefficients[len(knots) :], strict=True)}
    return (
        Coefficients(knot_rows=tuple(knots), knot_ns=tuple(coefficients[: len(knots)]), **named),
        FitError(
            num_steps=len(steps),
            mean=_mean(errors),
            p95=_p95(errors),
            held_out_mean=_mean(held_out),
            held_out_p95=_p95(held_out),
            three_term_mean=_three_term_error(steps),
        ),
    )


def choose_knots(rows: Sequence[int]) -> list[int]:
    """Return numbers of rows to interpolate between: those that more than one step has, the least and the greatest.

    What lies between two of them is interpolated; a knot that a single step determined would be that step's error.
    """
    counts = Counter(rows)
    if not counts:
        return [1]
    least, greatest = min(counts), max(counts)
    knots = [least]
    for row in sorted(row for row, number in counts.items() if number > 1 and least < row < greatest):
        if row >= _LEAST_STEP * knots[-1] and greatest >= _LEAST_STEP * row:
            knots.append(row)
    return knots if least == greatest else [*knots, greatest]


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Return the coefficients, none negative, for which ``rows`` times them come closest to ``targets``.

    Coordinate descent on the normal equations: each coefficient in turn takes its best value given the others.
    """
    size = len(rows[0])
    scales = [max(fsum(row[i] * row[i] for row in rows), 1e-300) ** -0.5 for i in range(size)]
    scaled = [[value * scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    gram = [[fsum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
    right = [fsum(row[i] * target for row, target in zip(scaled, targets, strict=True)) for i in range(size)]
    found = [0.0] * size
    for _ in range(_NUM_ROUNDS):
        moved = 0.0
        for i in range(size):
            if gram[i][i] <= 0.0:
                continue
            slack = right[i] - sum(g * f for g, f in zip(gram[i], found, strict=True))
            better = max(0.0, found[i] + slack / gram[i][i])
            moved = max(moved, abs(better - found[i]))
            found[i] = better
        if moved <= _ENOUGH * max(found):
            break
    return [value * scale for value, scale in zip(found, scales, strict=True)]


def _fit(steps: Sequence[TimedStep], knots: Sequence[int]) -> list[float]:
    """Fit with weights by which an error of 10 % counts the same in a short step as in a long one.

    At first a step's own duration stands for its length, which makes slow steps count less than fast ones. Then the
    fit before does, so that durations are met on average, and a long run takes as long as its steps together.
    """
    features = [_features(step.shape, knots) for step in steps]
    lengths = [step.duration_ns for step in steps]
    found: list[float] = []
    for _ in range(_NUM_REWEIGHTINGS):
        rows = [[value / length for value in row] for row, length in zip(features, lengths, strict=True)]
        targets = [step.duration_ns / length for step, length in zip(steps, lengths, strict=True)]
        found = least_squares(rows, targets)
        lengths = [max(_dot(row, found), 1.0) for row in features]
    return found


def _features(shape: StepShape, knots: Sequence[int]) -> list[float]:
    """Weights of the knots around the number of rows, then the terms."""
    weights = [0.0] * len(knots)
    above = min(max(bisect_right(knots, shape.num_rows), 1), len(knots) - 1)
    if len(knots) == 1:
        weights[0] = 1.0
    else:
        low, high = knots[above - 1], knots[above]
        part = (shape.num_rows - low) / (high - low)
        weights[above - 1], weights[above] = 1.0 - part, part
    return [*weights, *(float(term(shape)) for _, term in _TERMS)]


def _errors(steps: Sequence[TimedStep], coefficients: Sequence[float], knots: Sequence[int]) -> list[float]:
    predicted = [_dot(_features(step.shape, knots), coefficients) for step in steps]
    return [abs(guess / step.duration_ns - 1.0) for guess, step in zip(predicted, steps, strict=True)]


def _three_term_error(steps: Sequence[TimedStep]) -> float:
    features = [
        [1.0, float(s.shape.num_rows), float(s.shape.num_decode_context_tokens + s.shape.num_chunk_pairs)]
        for s in steps
    ]
    rows = [[value / step.duration_ns for value in row] for row, step in zip(features, steps, strict=True)]
    found = least_squares(rows, [1.0] * len(steps))
    return _mean([abs(fsum(v * f for v, f in zip(row, found, strict=True)) - 1.0) for row in rows])


def _dot(row: Sequence[float], coefficients: Sequence[float]) -> float:
    return fsum(value * coefficient for value, coefficient in zip(row, coefficients, strict=True))


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
