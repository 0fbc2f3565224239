"""Makes requests from ServeGen's client tables: per client and window a rate and the shape of its gaps, and lengths.

Knows nothing of other formats. Source: alibaba/ServeGen; Xiang et al., arXiv:2505.09999. The tables are two files,
``*_rates.csv`` and ``*_lengths.csv``; either of them names the pair.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, groupby
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import NS_PER_S, window_arrivals
from chairlift.workload.distributions import Quantiles
from chairlift.workload.items import MAX_OUTPUT_TOKENS, WorkRequest
from chairlift.workload.traces.reading import Lap, read_csv

WINDOW_S = 600
_PATTERNS = ("Gamma", "Weibull")
_MOST_PER_S = 1e5
"""Of one client: the arrivals of a window are drawn at once."""
_QUANTILES = {
    "p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99,
    "p99.9": 0.999, "max": 1.0,
}  # fmt: skip


class _Window(NamedTuple):
    start_s: int
    client: str
    rate_per_s: float
    pattern: str
    shape: float


class _LengthRow(NamedTuple):
    client: str
    start_s: int
    field: str
    quantiles: Quantiles
    num_requests: float


class _LengthWindows:
    """Lengths of one client over time."""

    def __init__(self) -> None:
        self.starts_s: list[int] = []
        self.inputs: list[Quantiles] = []
        self.outputs: list[Quantiles] = []
        self.num_requests = 0.0

    def draw(self, at_s: int, rng: Random) -> tuple[int, int]:
        """Draw prompt and output lengths of a request at this time."""
        index = max(0, bisect_right(self.starts_s, at_s) - 1)
        return self.inputs[index].draw(rng), self.outputs[index].draw(rng)


class ServeGenTrace:
    """A stream of requests from the tables, drawn window by window, so that its length costs no memory.

    Each window has as many requests as its rate says; only the shape of the gaps is taken from the fitted distribution.
    Clients without lengths get those of another client, drawn by how many requests each has.
    """

    has_arrivals = True

    def __init__(self, path: Path) -> None:
        for kind, other in (("_rates", "_lengths"), ("_lengths", "_rates")):
            if kind in path.name:
                pair = {kind: path, other: path.with_name(path.name.replace(kind, other))}
                self._rates_path, self._lengths_path = pair["_rates"], pair["_lengths"]
                return
        raise ConfigurationError(f"{path} has ServeGen's columns, but its name has neither _rates nor _lengths")

    @staticmethod
    def fits(first_line: str) -> bool:
        """Whether a file with this first line is of this format."""
        return first_line.startswith(("client,timestamp_s,rate_rps", "client,window_start_s,field"))

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the requests; see :class:`~.reading.Trace`. The pass begins with the window of ``lap.start_s``."""
        windows = [window for window in self._windows if window.start_s + WINDOW_S > lap.start_s]
        if not windows:
            after = f" after {lap.start_s:g} s" if lap.start_s else ""
            raise ConfigurationError(f"trace {self._rates_path} has no request{after}")
        first_s, end_s = windows[0].start_s, windows[-1].start_s + WINDOW_S
        own_rate_per_s = sum(window.rate_per_s for window in windows) * WINDOW_S / (end_s - first_s)
        factor = 1.0 if lap.rate_per_s is None else lap.rate_per_s / own_rate_per_s
        for start_s, group in groupby(windows, lambda window: window.start_s):
            offset_ns = (start_s - first_s) * NS_PER_S
            streams = [self._client_arrivals(window, offset_ns, factor, lap.rng) for window in group]
            for arrival_ns, client in heapq.merge(*streams):
                prompt, output = self._lengths_of(client, lap.rng).draw(start_s, lap.rng)
                yield WorkRequest(arrival_ns, prompt, output)

    def _client_arrivals(
        self, window: _Window, offset_ns: int, factor: float, rng: Random
    ) -> Iterator[tuple[int, str]]:
        expected = window.rate_per_s * factor * WINDOW_S
        count = int(expected) + (rng.random() < expected - int(expected))
        # Drawn at once: streams are merged, and what each draws must not depend on the others.
        arrivals = list(
            window_arrivals(count, offset_ns, WINDOW_S * NS_PER_S, pattern=window.pattern, shape=window.shape, rng=rng)
        )
        return ((arrival_ns, window.client) for arrival_ns in arrivals)

    def _lengths_of(self, client: str, rng: Random) -> _LengthWindows:
        lengths, cumulated = self._lengths
        if client in lengths:
            return lengths[client]
        return rng.choices(list(lengths.values()), cum_weights=cumulated)[0]

    @cached_property
    def _windows(self) -> list[_Window]:
        return sorted(row for row in read_csv(self._rates_path, _parse_window, names_file=True) if row.rate_per_s > 0)

    @cached_property
    def _lengths(self) -> tuple[dict[str, _LengthWindows], list[float]]:
        tables: dict[tuple[str, int], dict[str, Quantiles]] = defaultdict(dict)
        counts: dict[str, float] = defaultdict(float)
        for row in read_csv(self._lengths_path, _parse_lengths, names_file=True):
            tables[row.client, row.start_s][row.field] = row.quantiles
            counts[row.client] += row.num_requests
        if not tables:
            raise ValueError(f"{self._lengths_path.name} has a head and no lengths behind it")
        lengths: dict[str, _LengthWindows] = {}
        for (client, start_s), fields in sorted(tables.items()):
            windows = lengths.setdefault(client, _LengthWindows())
            windows.starts_s.append(start_s)
            missing = {"input_tokens", "output_tokens"} - fields.keys()
            if missing:
                raise ValueError(f"client {client} has no {' and no '.join(sorted(missing))} from {start_s} s on")
            windows.inputs.append(fields["input_tokens"])
            windows.outputs.append(fields["output_tokens"])
        return lengths, list(accumulate(counts[client] for client in lengths))


def _parse_window(row: dict[str, str]) -> _Window:
    rate, shape, pattern = float(row["rate_rps"]), float(row["shape"]), row["pattern"]
    if not 0 <= rate <= _MOST_PER_S:
        raise ValueError(f"rate_rps must be in [0, {_MOST_PER_S:g}], got {rate:g}")
    if not 0 < shape < inf or pattern not in _PATTERNS:
        raise ValueError(
            f"gaps must be like those of {' or '.join(_PATTERNS)}, of a positive shape, got {pattern!r} and {shape:g}"
        )
    return _Window(_whole_s(row["timestamp_s"], "timestamp_s"), row["client"], rate, pattern, shape)


def _parse_lengths(row: dict[str, str]) -> _LengthRow:
    points = [(chance, float(row[name])) for name, chance in _QUANTILES.items()]
    lengths = [length for _, length in points]
    if not all(0 <= length <= MAX_OUTPUT_TOKENS for length in lengths) or lengths != sorted(lengths):
        raise ValueError(f"quantiles of lengths must grow, within [0, {MAX_OUTPUT_TOKENS}], got {lengths}")
    num_requests = float(row["est_requests"])
    if not 0 <= num_requests < inf:
        raise ValueError(f"est_requests must be at least 0, got {num_requests:g}")
    start_s = _whole_s(row["window_start_s"], "window_start_s")
    return _LengthRow(row["client"], start_s, row["field"], Quantiles(points), num_requests)


def _whole_s(text: str, what: str) -> int:
    at_s = int(text)
    if at_s < 0:
        raise ValueError(f"{what} must be at least 0, got {at_s}")
    return at_s
