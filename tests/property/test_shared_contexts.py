"""Contexts that decodes share, in any page tables: each is shared indeed, and none that is worth it is left out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from chairlift.execution.torch_backend.kernels_native.shared_contexts import SharedContext, find_shared_contexts

PAGE_SIZE = 64
FEWEST_SPARED_TOKENS = 256


@st.composite
def page_tables(draw: st.DrawFn) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Requests that branch off one another, in any order; behind what may be shared the tables hold anything."""
    tables: list[list[int]] = []
    fresh = 0
    for _ in range(draw(st.integers(0, 12))):
        begin = draw(st.sampled_from(tables)) if tables else []
        table = begin[: draw(st.integers(0, len(begin)))]
        for _ in range(draw(st.integers(0, 5))):
            table = [*table, fresh]
            fresh += 1
        tables.append(table)
    tables = draw(st.permutations(tables))
    counts = np.array([len(table) for table in tables], np.int64)
    width = int(counts.max(initial=0)) + draw(st.integers(0, 2))
    padded = [table + [draw(st.integers(0, 3))] * (width - len(table)) for table in tables]
    return np.array(padded, np.int32).reshape(len(tables), width), counts


@given(page_tables())
def test_rows_share_what_they_have_in_common_and_everything_that_many_have(
    given_tables: tuple[NDArray[np.int32], NDArray[np.int64]],
) -> None:
    tables, num_pages = given_tables
    shared = find_shared_contexts(tables, num_pages, PAGE_SIZE)
    ends = np.zeros(len(tables), np.int64)
    for context in shared:
        assert len(context.rows) > 1
        assert len(set(context.rows.tolist())) == len(context.rows)
        assert context.stop_page > context.start_page
        assert (ends[context.rows] == context.start_page).all()  # nothing twice, and no gap
        ends[context.rows] = context.stop_page
        assert (context.stop_page <= num_pages[context.rows]).all()
        alike = tables[context.rows, : context.stop_page]
        assert (alike == alike[0]).all()
    for row in range(len(tables)):
        for stop in range(int(ends[row]) + 1, int(num_pages[row]) + 1):
            others = [
                other
                for other in range(len(tables))
                if num_pages[other] >= stop and (tables[other, :stop] == tables[row, :stop]).all()
            ]
            assert (stop - ends[row]) * PAGE_SIZE * (len(others) - 1) < FEWEST_SPARED_TOKENS


def test_a_common_beginning_and_branches_of_it() -> None:
    tables = np.array([[7, 1, 2, 3], [7, 1, 2, 4], [7, 1, 5, 6], [9, 1, 2, 3]], np.int32)
    shared = find_shared_contexts(tables, np.array([4, 4, 3, 4]), 256)
    assert [_told(context) for context in shared] == [([0, 1, 2], 0, 2), ([0, 1], 2, 3)]


def test_what_is_too_short_is_shared_further_down_if_at_all() -> None:
    tables = np.array([[7, 1, 2], [7, 1, 3], [7, 4, 5]], np.int32)
    shared = find_shared_contexts(tables, np.array([3, 3, 3]), 64)
    assert shared == []
    assert [_told(context) for context in find_shared_contexts(tables, np.array([3, 3, 3]), 128)] == [([0, 1, 2], 0, 1)]
    assert [_told(context) for context in find_shared_contexts(tables[:2], np.array([3, 3]), 128)] == [([0, 1], 0, 2)]


def _told(context: SharedContext) -> tuple[list[int], int, int]:
    return sorted(context.rows.tolist()), context.start_page, context.stop_page
