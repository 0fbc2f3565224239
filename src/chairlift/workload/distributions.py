"""Distributions of lengths in tokens, as small values that draw from a generator.

Knows nothing of what has these lengths.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from chairlift.errors import ConfigurationError


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

    A number is that length; ``{median, sigma, max}`` is lognormal; ``{low, high}`` is uniform.

    Raises:
        ConfigurationError: it is none of these; the message says what may be written.
    """
    if isinstance(value, int) and value >= 1:
        return Fixed(value)
    if isinstance(value, Mapping):
        given = {str(key): number for key, number in value.items() if isinstance(number, int | float)}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if {"median", "sigma"} <= given.keys() <= {"median", "sigma", "max"} and given["median"] >= 1:
            maximum = int(given["max"]) if "max" in given else None
            return Lognormal(float(given["median"]), float(given["sigma"]), maximum)
        if given.keys() == {"low", "high"} and 1 <= given["low"] <= given["high"]:
            return Uniform(int(given["low"]), int(given["high"]))
    raise ConfigurationError(
        f"{what} is {value!r}, but must be a number of tokens, {{median, sigma, max}} or {{low, high}}"
    )
