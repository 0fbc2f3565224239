"""Reads Azure's LLM inference traces: columns TIMESTAMP, ContextTokens, GeneratedTokens.

Knows nothing of other formats. Source: Azure/AzurePublicDataset; Patel et al., "Splitwise" (ISCA 2024).
"""

from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path

from chairlift.workload.items import WorkRequest
from chairlift.workload.traces.reading import Lap, mean_rate_per_s, read_csv, stretch

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
        rows: list[WorkRequest] = []
        first = None
        for row in read_csv(self._path):
            moment = datetime.fromisoformat(row["TIMESTAMP"])
            first = first or moment
            passed = moment - first
            arrival_us = (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            rows.append(WorkRequest(arrival_us * _NS_PER_US, max(1, prompt), max(1, output)))
        earliest_ns = min((row.arrival_ns for row in rows), default=0)  # of lines in any order
        return sorted(row._replace(arrival_ns=row.arrival_ns - earliest_ns) for row in rows)
