"""What every trace reader shares: how a file is opened, and what it is asked for.

Knows nothing of formats.
"""

import csv
import gzip
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Protocol, TextIO, TypeVar, cast

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import NS_PER_S
from chairlift.workload.faults import in_words
from chairlift.workload.items import WorkRequest

_NS_PER_DAY = 86_400 * NS_PER_S
_LONGEST_GAP_NS = 31 * _NS_PER_DAY

Row = TypeVar("Row")


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


def read_csv(path: Path, parse: Callable[[dict[str, str]], Row], *, names_file: bool = False) -> Iterator[Row]:
    """Rows of a CSV file: what ``parse`` makes of each, which it is given by column.

    ``names_file``: whether faults are said with the file's name, since a trace has several.

    Raises:
        ValueError: a row has more or fewer columns than the head, or is not as ``parse`` wants it; it has the number
            of the line.
    """
    with open_text(path) as file:
        rows = csv.DictReader(file)
        for row in rows:
            with naming_line(rows.line_num, path.name if names_file else None):
                _check_columns(row)
                parsed = parse(row)
            yield parsed


def read_json_lines(path: Path, parse: Callable[[dict[str, Any]], Row]) -> Iterator[Row]:
    """Lines of JSON: what ``parse`` makes of each. Empty lines are left out.

    Raises:
        ValueError: a line is no JSON, or not as ``parse`` wants it; it has the number of the line.
    """
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                with naming_line(number):
                    parsed = parse(json.loads(line))
                yield parsed


def whole_tokens(value: object, what: str) -> int:
    """Check a number of tokens. Recordings have prompts and answers of none, which stand for one token here.

    Raises:
        ValueError: it is no whole number, or below 0.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{what} must be a whole number, got {quoted(value)}")
    if value < 0:
        raise ValueError(f"{what} must be at least 0, got {quoted(value)}")
    return max(1, value)


def check_gaps(arrivals: Iterable[tuple[int, int]]) -> None:
    """Refuse times of which one is a slip of the pen: requests are waited for a month at most.

    Args:
        arrivals: moments in ns, in their order, and the place of each in the file, from 0 on.

    Raises:
        ValueError: there is a longer pause.
    """
    for (before_ns, before), (at_ns, place) in pairwise(arrivals):
        if at_ns - before_ns > _LONGEST_GAP_NS:
            raise ValueError(
                f"request {place + 1} comes {(at_ns - before_ns) / _NS_PER_DAY:.0f} days after the one before it in "
                f"time, request {before + 1}; {_LONGEST_GAP_NS // _NS_PER_DAY} are possible"
            )


@contextmanager
def naming_line(number: int, file_name: str | None = None) -> Generator[None]:
    """Say in which line of a file something was wrong."""
    try:
        yield
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        file = f" of {file_name}" if file_name else ""
        raise ValueError(f"line {number}{file}: {in_words(error)}") from error


def _check_columns(row: dict[str, str]) -> None:
    head = [name for name in cast("list[str | None]", list(row)) if name is not None]
    if len(head) < len(row):
        raise ValueError(f"more columns than the {len(head)} of the head")
    if None in cast("list[str | None]", list(row.values())):
        raise ValueError(f"fewer columns than the {len(head)} of the head")


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
