"""Finds the pages that several decodes begin with, so that attention reads them once for all of them.

Knows nothing of tensors. After "ChunkAttention" (Ye et al. 2024) and the cascade of FlashInfer (Ye et al. 2024): page
tables are paths of a prefix tree, and a node with enough rows below it and enough tokens is attended to on its own;
what each row saw there and what it sees behind it are put together as parts of long contexts are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST_TOKENS = 64
_LEAST_TOKENS_SPARED = 256
"""Not read again for every row; with less, putting parts together costs more than reading."""


@dataclass(frozen=True, slots=True)
class SharedContext:
    """Pages ``[start_page, stop_page)`` of the tables of some rows, which are the same."""

    rows: NDArray[np.int64]
    start_page: int
    stop_page: int


def find_shared_contexts(
    page_tables: NDArray[np.int32], num_pages: NDArray[np.int64], page_size: int
) -> list[SharedContext]:
    """Return contexts worth sharing. Those of one row follow each other, from its first page on.

    Args:
        page_tables: ``[D, P]``.
        num_pages: ``[D]``, pages of each table that may be shared; what stands behind them is not looked at.
        page_size: token slots of a page.
    """
    shared: list[SharedContext] = []
    # Groups of rows with the same pages [0, known), whose pages [0, start) have been shared already.
    groups = [(rows, 0, 0) for rows in _groups(page_tables, np.flatnonzero(num_pages), 0)]
    while groups:
        rows, start, known = groups.pop()
        shortest = int(num_pages[rows].min())
        is_same = (page_tables[rows, known:shortest] == page_tables[rows[0], known:shortest]).all(axis=0)
        stop = known + (len(is_same) if is_same.all() else int(is_same.argmin()))
        num_tokens = (stop - start) * page_size
        if num_tokens >= _LEAST_TOKENS and num_tokens * (len(rows) - 1) >= _LEAST_TOKENS_SPARED:
            shared.append(SharedContext(rows, start, stop))
            start = stop
        groups += [(some, start, stop) for some in _groups(page_tables, rows[num_pages[rows] > stop], stop)]
    return shared


def _groups(page_tables: NDArray[np.int32], rows: NDArray[np.int64], place: int) -> list[NDArray[np.int64]]:
    """Split rows by one of their pages; rows that have a page to themselves are left out."""
    if len(rows) < 2:
        return []
    pages = page_tables[rows, place]
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    if is_first.all():
        return []
    return [some for some in np.split(rows[order], np.flatnonzero(is_first)[1:]) if len(some) > 1]
