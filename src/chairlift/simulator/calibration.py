"""Times an executor on steps of chosen sizes, by plans that no scheduler made.

Knows nothing of what executes them. The KV of a step's context is whatever its pages hold: reading it takes as long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import NamedTuple

from chairlift.core.ports import Executor
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import Chunk, NewRequest, PageCopy, StepPlan
from chairlift.simulator.fit import TimedStep
from chairlift.simulator.latency.model import StepShape

_GREEDY = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
_TOKEN_ID = 101
_EPOCH = 1_000_000
"""Not that of any scheduler: whatever the executor knew before is forgotten."""


class Cell(NamedTuple):
    """A step to time: decodes with their context, prompt chunks by where they start and how long they are, copies."""

    num_decodes: int = 0
    context_tokens: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    num_pages_out: int = 0
    num_pages_in: int = 0

    @property
    def num_tokens(self) -> int:
        """Rows of the step."""
        return self.num_decodes + sum(length for _, length in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the executor was built for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_pages: int
    page_size: int
    num_host_pages: int = 0


def choose_cells(limits: Limits, *, thoroughness: int = 2) -> list[Cell]:
    """Return a grid of steps: decodes by context, chunks by start, chunks beside decodes; small steps first.

    ``thoroughness`` 1 is a coarse grid, 3 a fine one.
    """
    slots = _doubling(1, limits.max_num_seqs, thoroughness)
    contexts = _doubling(16, limits.max_model_len - 64, min(thoroughness, 2), factor=4)
    lengths = _doubling(1, limits.max_num_batched_tokens, thoroughness)
    cells = [Cell(n, context) for n in slots for context in contexts]
    cells += [Cell(chunks=((start, length),)) for length in lengths for start in (0, *contexts[1:])]
    for decodes in slots[:: 2 if thoroughness > 1 else 3]:
        for length in lengths[2:]:
            cells.append(Cell(decodes, contexts[len(contexts) // 2], ((0, length),)))
    for number in (2, 4):
        cells += [Cell(chunks=((0, length // number),) * number) for length in lengths if length >= 16 * number]
    for number in _doubling(8, min(limits.num_host_pages, 512), 2, factor=4) if limits.num_host_pages >= 8 else ():
        cells += [Cell(4, contexts[0], (), number, 0), Cell(4, contexts[0], (), 0, number)]
    fitting = dict.fromkeys(cell for cell in cells if _fits(cell, limits))
    return sorted(fitting, key=lambda cell: (cell.num_tokens, cell))


def _doubling(first: int, last: int, thoroughness: int, factor: int = 2) -> list[int]:
    """From one number to another by steps of about the factor, or its root if thoroughness is 3."""
    values: list[int] = []
    value, step = float(first), float(factor * factor if thoroughness == 1 else factor)
    if thoroughness > 2:
        step = factor**0.5
    while value < last:
        values.append(round(value))
        value *= step
    return sorted({*values, max(last, first)})


def _fits(cell: Cell, limits: Limits) -> bool:
    held = [cell.context_tokens + 8] * cell.num_decodes + [start + length for start, length in cell.chunks]
    return (
        cell.num_tokens <= limits.max_num_batched_tokens
        and len(held) <= limits.max_num_seqs
        and max(held) <= limits.max_model_len
        and _num_pages(cell, limits.page_size) + cell.num_pages_out + cell.num_pages_in <= limits.num_pages
    )


def _num_pages(cell: Cell, page_size: int) -> int:
    held = [cell.context_tokens + 1] * cell.num_decodes + [start + length for start, length in cell.chunks]
    return sum(-(-tokens // page_size) for tokens in held)


class Calibration:
    """Runs cells on an executor. Steps and request ids are its own, so nothing else may use the executor meanwhile.

    Args:
        executor: what is timed.
        limits: what it was built for.
        vocab_size: token ids are below this.
    """

    def __init__(self, executor: Executor, limits: Limits, vocab_size: int) -> None:
        self._executor, self._limits = executor, limits
        self._token_id = min(_TOKEN_ID, vocab_size - 1)
        self._steps = count()
        self._ids = count()
        self._known: list[int] = []

    def time(self, cell: Cell, num_repeats: int = 3) -> TimedStep:
        """Time a cell: the median of a few steps after one that is not counted."""
        durations = [self._run(cell) for _ in range(num_repeats + 1)]
        return TimedStep(shape_of(cell), median(durations[1:]))

    def _run(self, cell: Cell) -> int:
        """Run the cell's step. Every time it is set up anew, so that contexts do not grow."""
        pages = iter(range(self._limits.num_pages))
        ended, self._known = tuple(self._known), []
        decodes = [self._new(cell.context_tokens, 1, pages) for _ in range(cell.num_decodes)]
        prompts = [self._new(start, length, pages) for start, length in cell.chunks]
        chunks = tuple(
            Chunk(prompt.request_id, start, length, samples=True)
            for prompt, (start, length) in zip(prompts, cell.chunks, strict=True)
        )
        # Copied pages are behind those that the step uses; what they hold is nobody's.
        first = _num_pages(cell, self._limits.page_size)
        plan = StepPlan(
            step=next(self._steps),
            epoch=_EPOCH,
            num_tokens=cell.num_tokens,
            num_decodes=cell.num_decodes,
            new=(*decodes, *prompts),
            ended=ended,
            decodes_joined=tuple(request.request_id for request in decodes),
            chunks=chunks,
            swapped_out=tuple(PageCopy(first + place, place) for place in range(cell.num_pages_out)),
            swapped_in=tuple(PageCopy(place, first + place) for place in range(cell.num_pages_in)),
        )
        return self._executor.wait(self._executor.submit(plan)).duration_ns

    def _new(self, num_computed: int, num_more: int, pages: Iterator[int]) -> NewRequest:
        num_tokens = num_computed + num_more
        request_id = next(self._ids)
        self._known.append(request_id)
        num_pages = -(-num_tokens // self._limits.page_size)
        return NewRequest(
            request_id=request_id,
            token_ids=(self._token_id,) * num_tokens,
            num_prompt_tokens=num_tokens,
            num_computed_tokens=num_computed,
            pages=tuple(next(pages) for _ in range(num_pages)),
            sampling=_GREEDY,
            seed=0,
        )


def shape_of(cell: Cell) -> StepShape:
    """Return what a latency model is told about the cell."""
    return StepShape(
        num_decodes=cell.num_decodes,
        num_decode_context_tokens=cell.num_decodes * (cell.context_tokens + 1),
        num_chunks=len(cell.chunks),
        num_chunk_rows=sum(length for _, length in cell.chunks),
        num_chunk_pairs=sum(length * start + length * (length + 1) // 2 for start, length in cell.chunks),
        num_chunk_context_tokens=sum(start + length for start, length in cell.chunks),
        num_sampled=cell.num_decodes + len(cell.chunks),
        num_pages_out=cell.num_pages_out,
        num_pages_in=cell.num_pages_in,
    )


def fit_overhead(samples: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Fit (rows, ns beside the step) with a constant and a slope, by medians: ``(per step, per row)``."""
    by_rows: dict[int, list[int]] = {}
    for rows, overhead_ns in samples:
        by_rows.setdefault(rows, []).append(overhead_ns)
    points = sorted((rows, median(values)) for rows, values in by_rows.items())
    if not points:
        return 0, 0
    if len(points) == 1:
        return int(points[0][1]), 0
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :]]
    slope = max(0.0, median(slopes))
    return max(0, int(median(ns - slope * rows for rows, ns in points))), int(slope)
