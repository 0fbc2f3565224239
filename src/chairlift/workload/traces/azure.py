"""Reads Azure's LLM inference traces: columns TIMESTAMP, ContextTokens, GeneratedTokens.

Knows nothing of other formats. Source: Azure/AzurePublicDataset; Patel et al., "Splitwise" (ISCA 2024).
"""

from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path

from chairlift.workload.items import WorkRequest
from chairlift.workload.traces.reading import Lap, check_gaps, mean_rate_per_s, read_csv, stretch, whole_tokens

_NS_PER_US = 1000


class AzureTrace:
    """Lengths with arrival times; prompts share nothing."""

    has_arrivals = True

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def fits(first_line: str) -> bool:
        """Whether a file with this first line is of this format."""
        return first_line.startswith("TIMESTAMP,ContextTokens,GeneratedTokens")

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the requests; see :class:`~.reading.Trace`."""
        rows = self._rows
        return stretch(rows, mean_rate_per_s(len(rows), rows[-1].arrival_ns), lap)

    @cached_property
    def _rows(self) -> list[WorkRequest]:
        rows = list(read_csv(self._path, _Lines().parse))
        if not rows:
            raise ValueError("there is a head and no request behind it")
        # Lines may be in any order.
        check_gaps(sorted((row.arrival_ns, place) for place, row in enumerate(rows)))
        earliest_ns = min(row.arrival_ns for row in rows)
        return sorted(row._replace(arrival_ns=row.arrival_ns - earliest_ns) for row in rows)


class _Lines:
    """Makes requests of lines; times count from the first one's."""

    def __init__(self) -> None:
        self._first: datetime | None = None

    def parse(self, row: dict[str, str]) -> WorkRequest:
        moment = datetime.fromisoformat(row["TIMESTAMP"])
        first = self._first = self._first or moment
        if (moment.tzinfo is None) != (first.tzinfo is None):
            raise ValueError("either all times have an offset from UTC, or none has")
        passed = moment - first
        arrival_us = (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
        prompt, output = (whole_tokens(int(row[name]), name) for name in ("ContextTokens", "GeneratedTokens"))
        return WorkRequest(arrival_us * _NS_PER_US, prompt, output)
