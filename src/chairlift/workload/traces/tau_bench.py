"""Reads the calls of tau-bench conversations: columns task_id, trial, call, prompt_tokens, output_tokens.

Knows nothing of other formats. Source: sierra-research/tau-bench (airline). Every call's prompt is that of the call
before it, its answer and what came since; all conversations begin with the same policy and tools.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path

from chairlift.workload.items import ContentRun, WorkRequest
from chairlift.workload.traces.reading import Lap, read_csv, whole_tokens

SHARED_TOKENS = 3683
"""Tokens that every conversation begins with."""
_SHARED_ID = 1

_Call = tuple[int, int]
"""Tokens of prompt and output."""


class TauBenchTrace:
    """Conversations: each request is a first call, and its follow-ups are the calls after it."""

    has_arrivals = False

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def fits(first_line: str) -> bool:
        """Whether a file with this first line is of this format."""
        return first_line.startswith("task_id,trial,call,prompt_tokens,output_tokens")

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        """Read the conversations; see :class:`~.reading.Trace`."""
        next_id = _SHARED_ID + 1 + lap.number * sum(map(len, self._conversations))
        for calls in self._conversations:
            yield _link(calls, next_id)
            next_id += len(calls)

    @cached_property
    def _conversations(self) -> list[list[_Call]]:
        rows = read_csv(self._path, _parse)
        return [[call for _, call in group] for _, group in groupby(rows, lambda row: row[0])]


def _parse(row: dict[str, str]) -> tuple[tuple[str, str], _Call]:
    """Return whose call it is, and the call."""
    prompt, output = (whole_tokens(int(row[name]), name) for name in ("prompt_tokens", "output_tokens"))
    return (row["task_id"], row["trial"]), (prompt, output)


def _link(calls: list[_Call], first_id: int) -> WorkRequest:
    """Make requests of a conversation's calls, each with the prompt of the one before it as its prefix."""
    prompts: list[tuple[ContentRun, ...]] = []
    runs: tuple[ContentRun, ...] = ()
    for index, (prompt, _) in enumerate(calls):
        known = sum(run.num_tokens for run in runs)
        if prompt <= known or not runs:  # a shorter prompt was rewritten, so it begins like everybody's only
            shared = min(prompt, SHARED_TOKENS)
            runs, known = (ContentRun(_SHARED_ID, shared),), shared
        if prompt > known:
            runs = (*runs, ContentRun(first_id + index, prompt - known))
        prompts.append(runs)
    request = None
    for (prompt, output), prompt_runs in zip(reversed(calls), reversed(prompts), strict=True):
        request = WorkRequest(0, prompt, output, prompt_runs, follow_up=request)
    assert request is not None  # noqa: S101 - groups are never empty
    return request
