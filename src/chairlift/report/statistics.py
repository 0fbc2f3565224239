"""Means and percentiles of what was taken down, weighted where one entry stands for many.

Knows nothing of units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, fsum

PERCENTS = (50.0, 90.0, 95.0, 99.0)

CURVE_CHANCES = (*(index / 100 for index in range(100)), 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 1.0)
"""Where the curves of plots have their points."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution in a few numbers; ``percentiles`` are those of ``percents``."""

    count: int
    mean: float
    percentiles: tuple[float, ...]
    maximum: float
    percents: tuple[float, ...] = PERCENTS

    def at(self, percent: float) -> float:
        """Return one of the percentiles."""
        return self.percentiles[self.percents.index(percent)]

    def to_json(self, digits: int = 3) -> dict[str, float]:
        """Return the numbers by name."""
        named = {
            f"p{percent:g}": round(value, digits)
            for percent, value in zip(self.percents, self.percentiles, strict=True)
        }
        return {"count": self.count, "mean": round(self.mean, digits), **named, "max": round(self.maximum, digits)}


def describe(
    values: Iterable[float], scale: float = 1.0, percents: tuple[float, ...] = PERCENTS
) -> Distribution | None:
    """Describe values, each multiplied by ``scale``; ``None`` if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    percentiles = _at(ordered, [percent / 100 for percent in percents], scale)
    mean = fsum(ordered) / len(ordered) * scale
    return Distribution(len(ordered), mean, percentiles, ordered[-1] * scale, percents)


def curve(values: Iterable[float], scale: float = 1.0) -> tuple[float, ...]:
    """Return the quantiles at :data:`CURVE_CHANCES`; nothing if there are no values."""
    ordered = sorted(values)
    return _at(ordered, CURVE_CHANCES, scale) if ordered else ()


def describe_weighted(
    values: Sequence[float], counts: Sequence[int], scale: float = 1.0, percents: tuple[float, ...] = PERCENTS
) -> Distribution | None:
    """Describe values of which each occurs as often as its count says; ``percents`` must grow."""
    pairs = sorted(zip(values, counts, strict=True))
    if not pairs:
        return None
    total = sum(counts)
    percentiles = _at_weighted(pairs, [percent / 100 for percent in percents], scale)
    mean = fsum(value * count for value, count in pairs) / total * scale
    return Distribution(total, mean, percentiles, pairs[-1][0] * scale, percents)


def curve_weighted(values: Sequence[float], counts: Sequence[int], scale: float = 1.0) -> tuple[float, ...]:
    """Return the quantiles at :data:`CURVE_CHANCES`; nothing if there are no values."""
    pairs = sorted(zip(values, counts, strict=True))
    return _at_weighted(pairs, CURVE_CHANCES, scale) if pairs else ()


def jain_index(shares: Sequence[float]) -> float | None:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one has everything; ``None`` without any."""
    squares = fsum(share * share for share in shares)
    return fsum(shares) ** 2 / (len(shares) * squares) if squares else None


def _at(ordered: Sequence[float], chances: Sequence[float], scale: float) -> tuple[float, ...]:
    size = len(ordered)
    return tuple(ordered[max(0, ceil(chance * size) - 1)] * scale for chance in chances)


def _at_weighted(pairs: Sequence[tuple[float, int]], chances: Sequence[float], scale: float) -> tuple[float, ...]:
    """``chances`` must grow."""
    cumulated = list(accumulate(count for _, count in pairs))
    found: list[float] = []
    index = 0
    for chance in chances:
        rank = max(1, ceil(chance * cumulated[-1]))
        while cumulated[index] < rank:
            index += 1
        found.append(pairs[index][0] * scale)
    return tuple(found)
