"""Reads Mooncake's traces: JSON lines of timestamp (ms), input_length, output_length and hash_ids.

Knows nothing of other formats. Source: kvcache-ai/Mooncake (FAST 2025). Each hash id names a block of 512 prompt tokens
together with everything before it, so equal ids are equal prefixes. Only ``input_length`` and ``output_length`` must be
there, which makes this the format for traces of one's own too.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError
from chairlift.workload.items import UNSHARED_ID, ContentRun, WorkRequest
from chairlift.workload.traces.reading import Lap, check_gaps, mean_rate_per_s, read_json_lines, stretch, whole_tokens

BLOCK_TOKENS = 512
_NS_PER_MS = 1_000_000
_MAX_TICK_NS = 3_000_000_000
"""Timestamps are rounded to about so much; the last tick of a trace, or one before a gap, is taken to be this long."""


class MooncakeTrace:
    """Lengths with arrival times and prefixes.

    Timestamps stand on ticks of 3 seconds with dozens of requests on each. They are spread over the tick at random,
    since nobody sent them in volleys; the same generator spreads them in the same way.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def fits(first_line: str) -> bool:
        """Whether a file with this first line is of this format."""
        return first_line.startswith("{") and '"input_length"' in first_line and '"output_length"' in first_line

    @property
    def has_arrivals(self) -> bool:
        """Whether the lines carry timestamps."""
        return self._table[2]

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the requests; see :class:`~.reading.Trace`."""
        rows, num_ids, has_arrivals = self._table
        shifted = (_shift(row, lap.number * num_ids) for row in rows)
        if not has_arrivals:
            return shifted
        return stretch(_spread(shifted, lap), mean_rate_per_s(len(rows), rows[-1].arrival_ns), lap)

    @cached_property
    def _table(self) -> tuple[list[WorkRequest], int, bool]:
        names = _Names()
        parsed = list(read_json_lines(self._path, lambda row: _parse(row, names)))
        if not parsed:
            raise ConfigurationError(f"trace {self._path} is empty")
        num_timed = sum(is_timed for _, is_timed in parsed)
        if num_timed not in (0, len(parsed)):
            raise ValueError(f"{num_timed} of {len(parsed)} lines have a timestamp; all must have one, or none")
        rows = [row for row, _ in parsed]
        check_gaps(sorted((row.arrival_ns, place) for place, row in enumerate(rows)))
        return sorted(rows, key=lambda row: row.arrival_ns), len(names), num_timed > 0


def _parse(row: dict[str, Any], names: "_Names") -> tuple[WorkRequest, bool]:
    """Return the request of a line, and whether the line says when it arrives."""
    prompt, output = (whole_tokens(row[name], name) for name in ("input_length", "output_length"))
    runs = names.runs(row.get("hash_ids", []), prompt, row.get("block_tokens", BLOCK_TOKENS))
    arrival_ns = int(row.get("timestamp", 0) * _NS_PER_MS)
    if arrival_ns < 0:
        raise ValueError(f"a timestamp must be at least 0, got {row['timestamp']}")
    return WorkRequest(arrival_ns, prompt, output, runs), "timestamp" in row


class _Names:
    """Gives content ids to blocks, from 1 on: equal ones to blocks with equal hash ids behind equal beginnings.

    In the published traces a hash id stands for all that is before it as well. In a trace of one's own it may stand for
    the block alone, or be a hash of 64 bits.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def runs(self, hash_ids: list[int], num_tokens: int, block_tokens: int) -> tuple[ContentRun, ...]:
        """Return one run per block, the last one as long as the prompt leaves. What no id is for, nobody shares."""
        if type(block_tokens) is not int or block_tokens < 1 or not all(type(hash_id) is int for hash_id in hash_ids):
            raise ValueError(
                f"blocks of {quoted(block_tokens)} tokens, or a hash id of {quoted(hash_ids)}, are no whole numbers"
            )
        runs: list[ContentRun] = []
        content_id, num_left = UNSHARED_ID, num_tokens
        for hash_id in hash_ids[: -(-num_tokens // block_tokens)]:
            content_id = self._ids.setdefault((content_id, hash_id, block_tokens), len(self._ids) + 1)
            runs.append(ContentRun(content_id, min(block_tokens, num_left)))
            num_left -= block_tokens
        if runs and num_left > 0:
            runs.append(ContentRun(UNSHARED_ID, num_left))
        return tuple(runs)


def _shift(request: WorkRequest, offset: int) -> WorkRequest:
    """Give the prompt ids of its own, so that a second pass finds nothing of the first."""
    if offset == 0:
        return request
    return request._replace(
        runs=tuple(run._replace(content_id=run.content_id + offset) if run.content_id else run for run in request.runs)
    )


def _spread(requests: Iterator[WorkRequest], lap: Lap) -> Iterator[WorkRequest]:
    ticks = ((at_ns, list(group)) for at_ns, group in groupby(requests, lambda request: request.arrival_ns))
    end: tuple[int, list[WorkRequest]] = (-1, [])
    for (at_ns, group), (next_ns, _) in pairwise(_chain(ticks, end)):
        width_ns = _MAX_TICK_NS if next_ns < 0 else min(next_ns - at_ns, _MAX_TICK_NS)
        if len(group) == 1:
            width_ns = 1
        moments = sorted(lap.rng.randrange(width_ns) for _ in group)
        for request, moment in zip(group, moments, strict=True):
            yield request._replace(arrival_ns=at_ns + moment)


def _chain(
    ticks: Iterator[tuple[int, list[WorkRequest]]], end: tuple[int, list[WorkRequest]]
) -> Iterator[tuple[int, list[WorkRequest]]]:
    yield from ticks
    yield end
