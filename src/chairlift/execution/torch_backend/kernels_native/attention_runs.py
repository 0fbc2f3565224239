"""Cuts the rows of a step into the runs and parts that attention computes one by one.

Knows nothing of tensors but page tables. Tables are as in ``csrc/attention.h``: ``Run``, ``Merge`` and ``Part``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels_native.shared_contexts import find_shared_contexts

_MAX_RUN_ROWS = 48
_ITEMS_PER_THREAD = 4
_PART_TOKENS = 1024
"""Context that one item reads: short enough to share a long prompt's context among threads, long enough that putting
parts together costs little."""
_LARGE_ITEMS_PER_THREAD = 16
"""Items that are at most this fraction of a thread's work are small enough, and need no parts."""

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionRuns:
    """The attention items of one step; ``kept`` is the memory that ``runs`` and ``merges`` point to."""

    batch: ForwardBatch
    runs: Whole  # [R, 8]
    merges: Whole  # [M, 4]
    num_partials: int
    """float32 numbers of partial results."""
    kept: list[NDArray[np.int32] | Whole]

    def item_heads(self, num_threads: int, num_kv_heads: int) -> int:
        """Return the key-value heads of a run that one item computes.

        All, where that leaves every thread enough items: their keys and values lie side by side in memory, and what a
        core reads ahead of one head is what it needs for the next.
        """
        return num_kv_heads if len(self.runs) >= _ITEMS_PER_THREAD * num_threads else 1


class _Spans(NamedTuple):
    """Columns: tokens that share a page table, and the context that they are to see of it."""

    first_rows: Whole
    lengths: Whole  # tokens
    positions: Whole  # of the first one
    tables: Whole  # addresses
    starts: Whole
    stops: Whole
    rows: Whole  # addresses; 0: rows follow each other


class _Items(NamedTuple):
    owners: Whole  # of each item, its span
    places: Whole  # where its sums go
    row_size: int
    """Numbers of a token's sums for one key-value head."""


def make_runs(
    batch: ForwardBatch,
    heads: tuple[int, int, int],
    page_size: int,
    window: int | None,
    *,
    num_threads: int | None = None,
) -> AttentionRuns:
    """Cut a step's rows into runs of tokens that share a page table, and long contexts into parts.

    Args:
        batch: the step.
        heads: query heads per key-value head, key-value heads, head size.
        page_size: token slots of a page.
        window: tokens that a row sees at most, its own included.
        num_threads: that compute the items, if a row's sums may depend in last bits on what else is in the step:
            decodes that begin with the same pages then read them together, and contexts are cut only as far as threads
            need. ``None``: they may not.
    """
    group, num_kv_heads, head_size = heads
    tokens_per_run = max(1, _MAX_RUN_ROWS // group)
    own, page_tables = _own_spans(batch, tokens_per_run, page_size, window)
    # A window begins elsewhere for every row.
    if num_threads is not None and (window is None or (batch.decode_context_lengths <= window).all()):
        shared, shared_rows = _share(own, page_tables[0], batch.num_decodes, page_size, tokens_per_run)
    else:
        shared, shared_rows = None, np.empty(0, np.int32)
    spans = own if shared is None else _Spans(*(np.concatenate(both) for both in zip(own, shared, strict=True)))

    part_tokens = max(1, _part_tokens(spans, num_threads) // page_size) * page_size
    first_parts = spans.starts // part_tokens
    num_parts = (spans.stops - 1) // part_tokens - first_parts + 1
    is_in_parts = num_parts > 1
    if shared is not None:
        is_in_parts[shared_rows] = True
        is_in_parts[len(own.starts) :] = True
    owners = np.repeat(np.arange(len(num_parts)), num_parts)
    part_index = np.arange(len(owners)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    part_starts = (first_parts[owners] + part_index) * part_tokens
    row_size = group * (head_size + 2)
    sizes = np.where(is_in_parts[owners], spans.lengths[owners] * row_size * num_kv_heads, 0)
    places = np.cumsum(sizes) - sizes
    runs = np.stack(
        (
            spans.first_rows[owners],
            spans.lengths[owners],
            spans.positions[owners],
            spans.tables[owners],
            np.maximum(part_starts, spans.starts[owners]),
            np.minimum(part_starts + part_tokens, spans.stops[owners]),
            np.where(sizes > 0, places, -1),
            spans.rows[owners],
        ),
        axis=1,
    )
    merges = np.empty((0, 4), np.int64)
    kept: list[NDArray[np.int32] | Whole] = [*page_tables, shared_rows]
    if is_in_parts.any():
        merges, parts = _merges(own, _Items(owners, places, row_size), is_in_parts, spans.lengths, shared_rows)
        kept.append(parts)
    # Long items first, so that none is left alone at the end.
    cost = (runs[:, 5] - runs[:, 4]) * runs[:, 1]
    runs = np.ascontiguousarray(runs[np.argsort(-cost, kind="stable")])
    return AttentionRuns(batch, runs, merges, int(sizes.sum()), kept)


def _own_spans(
    batch: ForwardBatch, tokens_per_run: int, page_size: int, window: int | None
) -> tuple[_Spans, list[NDArray[np.int32]]]:
    """Return a span for every decode and for every few tokens of prompts; and the tables' memory, decodes' first."""
    decode_tables = np.ascontiguousarray(batch.decode_page_tables.numpy(), np.int32)
    decodes = np.arange(batch.num_decodes)
    page_tables = [decode_tables]
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
        page_tables.append(table)
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
    starts = np.zeros_like(positions)
    if window:
        starts = np.maximum(0, positions - window + 1) // page_size * page_size
    rows = np.zeros_like(positions)
    return _Spans(first_rows, lengths, positions, tables, starts, positions + lengths, rows), page_tables


def _part_tokens(spans: _Spans, num_threads: int | None) -> int:
    if num_threads is None or not len(spans.starts):
        return _PART_TOKENS
    total = int(((spans.stops - spans.starts) * spans.lengths).sum())
    return max(_PART_TOKENS, total // (num_threads * _LARGE_ITEMS_PER_THREAD * int(spans.lengths.max())))


def _share(
    own: _Spans, decode_tables: NDArray[np.int32], num_decodes: int, page_size: int, tokens_per_run: int
) -> tuple[_Spans | None, NDArray[np.int32]]:
    """Take what decodes have in common off their own spans.

    Returns spans of it, and their rows one after the other.
    """
    # A row's own token, and what stands on its page, are not shared: somebody may still write there.
    contexts = find_shared_contexts(decode_tables, own.positions[:num_decodes] // page_size, page_size)
    if not contexts:
        return None, np.empty(0, np.int32)
    cuts = [
        (rows, context.start_page * page_size, context.stop_page * page_size)
        for context in contexts
        for rows in np.split(context.rows, range(tokens_per_run, len(context.rows), tokens_per_run))
    ]
    all_rows, starts, stops = zip(*cuts, strict=True)
    shared_rows = np.concatenate(all_rows).astype(np.int32)
    lengths = np.array([len(rows) for rows in all_rows])
    addresses = shared_rows.ctypes.data + (np.cumsum(lengths) - lengths) * shared_rows.itemsize
    first_rows = np.array([rows[0] for rows in all_rows])
    stops = np.array(stops)
    for rows, _, stop in cuts:
        own.starts[rows] = stop  # contexts of a row follow each other
    return _Spans(first_rows, lengths, stops, own.tables[first_rows], np.array(starts), stops, addresses), shared_rows


def _merges(
    own: _Spans,
    items: _Items,
    is_in_parts: NDArray[np.bool_],
    lengths: Whole,
    shared_rows: NDArray[np.int32],
) -> tuple[Whole, Whole]:
    """Return tables of ``Merge`` and of ``Part``.

    Args:
        own: the first spans.
        items: of all spans.
        is_in_parts: of each span, whether it is put together, or a part of others.
        lengths: of each span, its tokens.
        shared_rows: of the further spans, one after the other.
    """
    num_own = len(own.starts)
    owners, places, row_size = items
    own_items = np.flatnonzero((owners < num_own) & is_in_parts[owners])
    shared_items = np.flatnonzero(owners >= num_own)
    first_of_span = np.cumsum(lengths[num_own:]) - lengths[num_own:]
    counts = lengths[owners[shared_items]]
    sharing = np.repeat(shared_items, counts)
    token = np.arange(len(sharing)) - np.repeat(np.cumsum(counts) - counts, counts)
    sharers = shared_rows[first_of_span[owners[sharing] - num_own] + token]
    part_owners = np.concatenate((sharers, owners[own_items]))
    part_items = np.concatenate((sharing, own_items))
    part_places = places[part_items]
    part_places[: len(sharing)] += token * row_size
    order = np.argsort(part_owners, kind="stable")
    parts = np.stack((part_places, lengths[owners[part_items]] * row_size), axis=1)[order]
    num_parts = np.bincount(part_owners, minlength=num_own)
    merged = np.flatnonzero(num_parts)
    first_parts = (np.cumsum(num_parts) - num_parts)[merged]
    addresses = parts.ctypes.data + first_parts * parts.strides[0]
    return np.stack((own.first_rows[merged], own.lengths[merged], num_parts[merged], addresses), axis=1), parts
