"""Distributions of lengths in tokens, as small values that draw from a generator.

Knows nothing of what has these lengths.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeGuard, cast

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError

_LONGEST_TOKENS = 1e9
_MOST_SIGMA = 10.0


class Lengths(Protocol):
    """Draws lengths, each at least 1."""

    def draw(self, rng: Random) -> int:
        """Return the next length."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    num_tokens: int

    def draw(self, rng: Random) -> int:
        """Return the length; the generator is not used."""
        del rng
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Heavy-tailed, as real prompts and answers are."""

    median_tokens: float
    sigma: float
    max_tokens: int | None = None

    def draw(self, rng: Random) -> int:
        """Draw one, cut off at the maximum."""
        drawn = max(1, int(rng.lognormvariate(math.log(self.median_tokens), self.sigma)))
        return drawn if self.max_tokens is None else min(drawn, self.max_tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length between two, both included."""

    low_tokens: int
    high_tokens: int

    def draw(self, rng: Random) -> int:
        """Draw one."""
        return rng.randint(self.low_tokens, self.high_tokens)


class Quantiles:
    """Lengths known by some of their quantiles, interpolated in a straight line between them.

    Args:
        quantiles: (probability, length), both growing; the last probability is 1.
    """

    def __init__(self, quantiles: Sequence[tuple[float, float]]) -> None:
        self._chances = [0.0, *(chance for chance, _ in quantiles)]
        self._lengths = [quantiles[0][1], *(length for _, length in quantiles)]

    def draw(self, rng: Random) -> int:
        """Draw one by the inverse of the distribution."""
        chance = rng.random()
        above = bisect_left(self._chances, chance, 1)
        low, high = self._chances[above - 1], self._chances[above]
        part = (chance - low) / (high - low)
        length = self._lengths[above - 1] + part * (self._lengths[above] - self._lengths[above - 1])
        return max(1, round(length))


def parse_lengths(value: object, what: str) -> Lengths:
    """Read a distribution as a workload file writes it.

    A number is that length; ``{median, sigma, max}`` is lognormal; ``{low, high}`` is uniform. Lengths of a milliard
    tokens or more, and a ``sigma`` above 10, are slips of the pen.

    Raises:
        ConfigurationError: it is none of these; the message says what may be written.
    """
    if _is_length(value) and isinstance(value, int):
        return Fixed(value)
    if isinstance(value, Mapping):
        given: dict[str, Any] = {str(key): number for key, number in cast("Mapping[object, object]", value).items()}
        sigma = given.pop("sigma", None)
        if all(map(_is_length, given.values())):
            if given.keys() == {"low", "high"} and sigma is None and given["low"] <= given["high"]:
                return Uniform(int(given["low"]), int(given["high"]))
            if "median" in given and given.keys() <= {"median", "max"} and _is_sigma(sigma):
                maximum = int(given["max"]) if "max" in given else None
                return Lognormal(float(given["median"]), float(sigma), maximum)
    shown = quoted(cast("object", value))
    raise ConfigurationError(
        f"{what} is {shown}, but must be a number of tokens, {{median, sigma, max}} or {{low, high}}, "
        f"lengths in [1, {_LONGEST_TOKENS:g}] and sigma in [0, {_MOST_SIGMA:g}]"
    )


def _is_length(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= _LONGEST_TOKENS


def _is_sigma(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SIGMA
