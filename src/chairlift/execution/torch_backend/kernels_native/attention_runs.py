"""Cuts the rows of a step into the runs and parts that attention computes one by one.

Knows nothing of tensors but page tables. Tables are as in ``csrc/attention.h``: ``Run`` and ``Merge``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.execution.torch_backend.forward import ForwardBatch

_MAX_RUN_ROWS = 48
_ITEMS_PER_THREAD = 4
_PART_TOKENS = 1024
"""Context that one item reads: short enough to share a long prompt's context among threads, long enough that putting
parts together costs little."""


@dataclass(frozen=True, slots=True)
class AttentionRuns:
    """The attention items of one step; ``kept`` is the memory that ``runs`` points to."""

    batch: ForwardBatch
    runs: NDArray[np.int64]  # [R, 7]
    merges: NDArray[np.int64]  # [M, 4]
    num_partials: int
    """float32 numbers of partial results."""
    kept: list[NDArray[np.int32]]

    def item_heads(self, num_threads: int, num_kv_heads: int) -> int:
        """Return the key-value heads of a run that one item computes.

        All, where that leaves every thread enough items: their keys and values lie side by side in memory, and what a
        core reads ahead of one head is what it needs for the next.
        """
        return num_kv_heads if len(self.runs) >= _ITEMS_PER_THREAD * num_threads else 1


def make_runs(batch: ForwardBatch, heads: tuple[int, int, int], page_size: int, window: int | None) -> AttentionRuns:
    """Cut a step's rows into runs of tokens that share a page table, and long contexts into parts.

    Args:
        batch: the step.
        heads: query heads per key-value head, key-value heads, head size.
        page_size: token slots of a page.
        window: tokens that a row sees at most, its own included.
    """
    group, num_kv_heads, head_size = heads
    first_rows, lengths, positions, tables, kept = _runs_of_tokens(batch, max(1, _MAX_RUN_ROWS // group))
    part_tokens = max(1, _PART_TOKENS // page_size) * page_size
    ends = positions + lengths
    starts = np.zeros_like(ends)
    if window:
        starts = np.maximum(0, positions - window + 1) // page_size * page_size
    first_parts = starts // part_tokens
    num_parts = (ends - 1) // part_tokens - first_parts + 1
    owners = np.repeat(np.arange(len(ends)), num_parts)
    part_index = np.arange(len(owners)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    part_starts = (first_parts[owners] + part_index) * part_tokens
    sizes = lengths[owners] * group * num_kv_heads * (head_size + 2)
    is_split = num_parts[owners] > 1
    places = np.cumsum(np.where(is_split, sizes, 0)) - np.where(is_split, sizes, 0)
    runs = np.stack(
        (
            first_rows[owners],
            lengths[owners],
            positions[owners],
            tables[owners],
            np.maximum(part_starts, starts[owners]),
            np.minimum(part_starts + part_tokens, ends[owners]),
            np.where(is_split, places, -1),
        ),
        axis=1,
    )
    firsts = is_split & (part_index == 0)
    merges = np.stack(
        (first_rows[owners], lengths[owners], num_parts[owners], places),
        axis=1,
    )[firsts]
    # Long items first, so that none is left alone at the end.
    cost = (runs[:, 5] - runs[:, 4]) * runs[:, 1]
    runs = np.ascontiguousarray(runs[np.argsort(-cost, kind="stable")])
    return AttentionRuns(batch, runs, np.ascontiguousarray(merges), int(np.where(is_split, sizes, 0).sum()), kept)


def _runs_of_tokens(
    batch: ForwardBatch, tokens_per_run: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int32]]]:
    """Return each run's first row, tokens, first position and page table's address; and the tables' memory."""
    decode_tables = np.ascontiguousarray(batch.decode_page_tables.numpy(), np.int32)
    decodes = np.arange(batch.num_decodes)
    kept = [decode_tables]
    columns = [
        (
            decodes,
            np.ones(batch.num_decodes, np.int64),
            batch.decode_context_lengths.numpy().astype(np.int64) - 1,
            decode_tables.ctypes.data + decodes * decode_tables.strides[0],
        )
    ]
    for chunk in batch.prefills:
        table = chunk.pages.numpy().astype(np.int32)
        kept.append(table)
        starts = np.arange(0, chunk.length, tokens_per_run)
        columns.append(
            (
                chunk.row_start + starts,
                np.minimum(tokens_per_run, chunk.length - starts),
                chunk.context_length - chunk.length + starts,
                np.full(len(starts), table.ctypes.data, np.int64),
            )
        )
    first_rows, lengths, positions, tables = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return first_rows, lengths, positions, tables, kept
