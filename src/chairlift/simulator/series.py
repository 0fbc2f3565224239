"""Quantities over time in a bounded number of points, however long the simulation runs.

Knows nothing of what the quantities are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_BUCKETS = 1024
_FIRST_WIDTH_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Mean of each quantity over a stretch of time, weighted by how long it had each value."""

    at_s: float
    means: tuple[float, ...]


class TimeSeries:
    """Integrates quantities into buckets of equal width; when there are too many, neighbours merge and widths double.

    Args:
        num_quantities: how many there are at each moment.
    """

    def __init__(self, num_quantities: int) -> None:
        self._num = num_quantities
        self._width_ns = _FIRST_WIDTH_NS
        self._sums: list[list[float]] = []
        self._weights: list[float] = []

    def add(self, start_ns: int, end_ns: int, values: Sequence[float]) -> None:
        """The quantities had these values from ``start_ns`` to ``end_ns``."""
        while end_ns > self._width_ns * _MAX_BUCKETS:
            self._merge()
        width = self._width_ns
        index, last = start_ns // width, max(end_ns - 1, start_ns) // width
        while len(self._sums) <= last:
            self._sums.append([0.0] * self._num)
            self._weights.append(0.0)
        if index == last:
            self._put(index, end_ns - start_ns, values)
            return
        for bucket in range(index, last + 1):
            inside = min(end_ns, (bucket + 1) * width) - max(start_ns, bucket * width)
            self._put(bucket, inside, values)

    def points(self) -> list[SeriesPoint]:
        """Return the means so far, in order of time; moments of which nothing is known are left out."""
        return [
            SeriesPoint((index + 0.5) * self._width_ns / 1e9, tuple(total / weight for total in sums))
            for index, (sums, weight) in enumerate(zip(self._sums, self._weights, strict=True))
            if weight > 0
        ]

    def _put(self, bucket: int, weight: float, values: Sequence[float]) -> None:
        sums = self._sums[bucket]
        for index, value in enumerate(values):
            sums[index] += weight * value
        self._weights[bucket] += weight

    def _merge(self) -> None:
        self._width_ns *= 2
        if len(self._sums) % 2:
            self._sums.append([0.0] * self._num)
            self._weights.append(0.0)
        pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
        self._sums = [[left + right for left, right in zip(*pair, strict=True)] for pair in pairs]
        self._weights = [left + right for left, right in zip(self._weights[::2], self._weights[1::2], strict=True)]
