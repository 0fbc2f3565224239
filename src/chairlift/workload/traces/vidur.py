"""Reads Vidur's processed traces: columns num_prefill_tokens and num_decode_tokens.

Knows nothing of other formats. Source: microsoft/vidur (arXiv summarization lengths). There are no arrival times.
"""

from collections.abc import Iterator
from pathlib import Path

from chairlift.workload.items import WorkRequest
from chairlift.workload.traces.reading import Lap, read_csv, whole_tokens


class VidurTrace:
    """Lengths alone."""

    has_arrivals = False

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def fits(first_line: str) -> bool:
        """Whether a file with this first line is of this format."""
        return first_line.startswith("num_prefill_tokens,num_decode_tokens")

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the requests; see :class:`~.reading.Trace`."""
        del lap
        return read_csv(self._path, _parse)


def _parse(row: dict[str, str]) -> WorkRequest:
    prompt, output = (whole_tokens(int(row[name]), name) for name in ("num_prefill_tokens", "num_decode_tokens"))
    return WorkRequest(0, prompt, output)
