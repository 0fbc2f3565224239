"""What every trace reader shares: how a file is opened, and what it is asked for.

Knows nothing of formats.
"""

import csv
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol, TextIO

from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import NS_PER_S
from chairlift.workload.items import WorkRequest


@dataclass(frozen=True, slots=True)
class Lap:
    """One pass over a trace.

    Args:
        rng: what is random about the pass comes from here.
        rate_per_s: the mean rate to stretch the arrivals to; the trace's own if absent.
        start_s: leave out what arrives earlier; the pass begins there.
        number: how many passes were made before; no prompt of one pass is like one of another, except for prefixes
            that all conversations share.
    """

    rng: Random
    rate_per_s: float | None = None
    start_s: float = 0.0
    number: int = 0


class Trace(Protocol):
    """A file of requests, read as a stream."""

    @property
    def has_arrivals(self) -> bool:
        """Whether it says when requests arrive; otherwise every ``arrival_ns`` is 0."""
        ...

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the requests in the order of their arrival, from 0 on.

        Raises:
            ConfigurationError: the file is not what it seemed to be.
        """
        ...


def open_text(path: Path) -> TextIO:
    """Open a text file, compressed or not.

    Raises:
        ConfigurationError: there is no such file.
    """
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", newline="")
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigurationError(f"trace {path} cannot be read: {error.strerror or error}") from None


def read_csv(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV file by column."""
    with open_text(path) as file:
        yield from csv.DictReader(file)


def stretch(requests: Iterable[WorkRequest], own_rate_per_s: float, lap: Lap) -> Iterator[WorkRequest]:
    """Start at ``lap.start_s``, and move arrivals apart or together until their mean rate is the one wanted."""
    start_ns = int(lap.start_s * NS_PER_S)
    factor = 1.0 if lap.rate_per_s is None else own_rate_per_s / lap.rate_per_s
    for request in requests:
        if request.arrival_ns >= start_ns:
            yield request._replace(arrival_ns=int((request.arrival_ns - start_ns) * factor))


def mean_rate_per_s(num_requests: int, span_ns: int) -> float:
    """Return the rate of so many arrivals within a span; 1 if they all came at once."""
    return num_requests * NS_PER_S / span_ns if span_ns > 0 else 1.0
