"""When requests arrive: Poisson, bursty, along a ramp, or all at once. Seeded by the generator that the caller gives.

Knows nothing of what arrives. Closed loops are not here: whoever runs the requests knows when one ends.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from random import Random

from chairlift.errors import ConfigurationError

NS_PER_S = 1_000_000_000
_MOST, _LEAST_LAST_RATE = 1e9, 1e-6
"""Seconds, and requests per second, that simulated time can hold."""


@dataclass(frozen=True, slots=True)
class RampPoint:
    """From ``at_s`` on the rate moves in a straight line to that of the next point."""

    at_s: float
    rate_per_s: float


def all_at_once() -> Iterator[int]:
    """Everybody is there at the start."""
    return repeat(0)


def renewals(rate_per_s: float, rng: Random, *, burstiness_cv: float = 1.0) -> Iterator[int]:
    """Arrival times in ns whose gaps are gamma distributed with this coefficient of variation; 1 is Poisson.

    Raises:
        ConfigurationError: a number is not positive.
    """
    if not (rate_per_s > 0 and burstiness_cv > 0):
        raise ConfigurationError(
            f"rate and burstiness of a stream must be positive, got {rate_per_s} and {burstiness_cv}"
        )
    shape = 1.0 / (burstiness_cv * burstiness_cv)
    scale_ns = NS_PER_S / (rate_per_s * shape)
    return _accumulate(shape, scale_ns, rng)


def _accumulate(shape: float, scale_ns: float, rng: Random) -> Iterator[int]:
    now_ns = 0.0
    is_poisson = shape == 1.0
    while True:
        now_ns += rng.expovariate(1.0 / scale_ns) if is_poisson else rng.gammavariate(shape, scale_ns)
        yield int(now_ns)


def ramp(points: Sequence[RampPoint], rng: Random) -> Iterator[int]:
    """Arrival times in ns of a Poisson process whose rate follows the points, and stays at the last one's.

    Raises:
        ConfigurationError: there is no point, their times do not grow, a number is not possible, or the last rate is
            zero.
    """
    times = [point.at_s for point in points]
    is_possible = all(0 <= point.at_s <= _MOST and 0 <= point.rate_per_s <= _MOST for point in points)
    if not points or times != sorted(set(times)) or not is_possible:
        raise ConfigurationError(f"a ramp needs points of growing time and of rates, all in [0, {_MOST:g}]")
    if points[-1].rate_per_s < _LEAST_LAST_RATE:
        raise ConfigurationError(
            f"a ramp's last rate must be at least {_LEAST_LAST_RATE:g}, or its last requests would never come, "
            f"got {points[-1].rate_per_s:g}"
        )
    return _thinned(points, rng)


def _thinned(points: Sequence[RampPoint], rng: Random) -> Iterator[int]:
    """Draw at the highest rate and keep each arrival with the chance that its own rate gives (Lewis and Shedler)."""
    highest = max(point.rate_per_s for point in points)
    now_s = points[0].at_s
    while True:
        now_s += rng.expovariate(highest)
        if rng.random() * highest < rate_at(points, now_s):
            yield int(now_s * NS_PER_S)


def rate_at(points: Sequence[RampPoint], at_s: float) -> float:
    """Return the rate of a ramp at a moment."""
    if at_s <= points[0].at_s:
        return points[0].rate_per_s
    for before, after in pairwise(points):
        if at_s < after.at_s:
            part = (at_s - before.at_s) / (after.at_s - before.at_s)
            return before.rate_per_s + part * (after.rate_per_s - before.rate_per_s)
    return points[-1].rate_per_s


def window_arrivals(
    count: int, start_ns: int, length_ns: int, *, pattern: str, shape: float, rng: Random
) -> Iterator[int]:
    """Arrival times of ``count`` requests within a window, whose gaps have the shape of a distribution.

    Only the shape is used: the gaps are rescaled so that they fill the window, whatever rate a fitted scale implies.

    Args:
        count: how many arrive.
        start_ns: where the window begins.
        length_ns: how long it is.
        pattern: ``Gamma`` or ``Weibull``.
        shape: the distribution's shape parameter.
        rng: where the gaps come from.
    """
    if pattern == "Weibull":
        gaps = [rng.weibullvariate(1.0, shape) for _ in range(count + 1)]
    else:
        gaps = [rng.gammavariate(shape, 1.0) for _ in range(count + 1)]
    total = math.fsum(gaps)
    if total <= 0.0:  # shapes near 0 may give gaps below what a float can hold
        gaps, total = [1.0] * (count + 1), float(count + 1)
    passed = 0.0
    for gap in gaps[:count]:
        passed += gap
        yield start_ns + int(passed / total * length_ns)
