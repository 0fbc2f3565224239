"""Counters and histograms whose update is one addition, for what is counted once per token.

Knows nothing of metrics' names. Unlike those of ``prometheus_client`` they take no lock: whoever counts and whoever
renders must be in one thread, as in an event loop.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class CounterCell:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Count."""
        self.value += amount


class HistogramCell:
    """One series of a histogram. A value on a bound belongs below it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Take a value that came so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class CounterFamily(Collector):
    """A counter with its series by label values; one without labels has its only series from the start."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        self._cells: dict[tuple[str, ...], CounterCell] = {}
        if not labels:
            self.labels()

    def labels(self, *values: str) -> CounterCell:
        """The series of these label values, made if it is new."""
        cell = self._cells.get(values)
        if cell is None:
            _check_arity(self._name, self._labels, values)
            cell = self._cells[values] = CounterCell()
        return cell

    def inc(self, amount: float = 1) -> None:
        """Count, where there are no labels."""
        self._cells[()].inc(amount)

    def remove(self, label: str, value: str) -> None:
        """Drop every series in which a label has this value."""
        position = self._labels.index(label)
        self._cells = {values: cell for values, cell in self._cells.items() if values[position] != value}

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the family for a scrape."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, cell in self._cells.items():
            family.add_metric(values, cell.value)
        yield family


class HistogramFamily(Collector):
    """A histogram with its series by label values; one without labels has its only series from the start."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        self._bounds = tuple(map(float, buckets))
        self._shown_bounds = [*map(str, self._bounds), "+Inf"]
        self._cells: dict[tuple[str, ...], HistogramCell] = {}
        if not labels:
            self.labels()

    def labels(self, *values: str) -> HistogramCell:
        """The series of these label values, made if it is new."""
        cell = self._cells.get(values)
        if cell is None:
            _check_arity(self._name, self._labels, values)
            cell = self._cells[values] = HistogramCell(self._bounds)
        return cell

    def observe(self, value: float, count: int = 1) -> None:
        """Take a value, where there are no labels."""
        self._cells[()].observe(value, count)

    def remove(self, label: str, value: str) -> None:
        """Drop every series in which a label has this value."""
        position = self._labels.index(label)
        self._cells = {values: cell for values, cell in self._cells.items() if values[position] != value}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family for a scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, cell in self._cells.items():
            total, buckets = 0, list[tuple[str, float]]()
            for bound, count in zip(self._shown_bounds, cell.counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(values, buckets, cell.sum)
        yield family


def _check_arity(name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    if len(labels) != len(values):
        raise ValueError(f"{name} has the labels {labels}, got {values}")
