"""Decodes that begin with the same pages, whose attention reads these pages once for all of them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels_native.attention_runs import make_runs
from tests.equivalence.kernels.both_kinds import both_kinds
from tests.equivalence.kernels.eager_kernels import REFERENCE, EagerKernels
from tests.equivalence.kernels.native_pages import attention_tolerance, kept_numbers, rounded_queries, stored
from tests.equivalence.kernels.test_cpu_kernels import make_batch, written_pages

NUM_PAGES = 900


@pytest.fixture(scope="module", params=["amx", "tiles", "avx512", "avx2", "generic"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[EagerKernels, EagerKernels]]:
    """Kernels that share contexts, and such that do not."""
    yield from both_kinds(request.param)


def shared_batch(contexts: list[int], families: list[list[tuple[int, int]]], page_size: int) -> ForwardBatch:
    """Decodes of these context lengths and one prompt; each family lists a row and how many pages of its first row's it
    begins with.
    """
    batch = make_batch(contexts, [(30, 100)], page_size, num_pages=NUM_PAGES * 16 // page_size)
    tables = batch.decode_page_tables.clone()
    for family in families:
        first = family[0][0]
        for row, num_pages in family[1:]:
            tables[row, :num_pages] = tables[first, :num_pages]
    return dataclasses.replace(batch, decode_page_tables=tables)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(
    ("group", "num_kv_heads", "head_size", "page_size"), [(3, 3, 64, 16), (1, 2, 64, 32), (16, 1, 16, 5)]
)
@pytest.mark.parametrize(
    ("contexts", "families"),
    [
        # All alike but for their ends; not next to one another; more rows than one item takes.
        ([500 + 3 * row for row in range(20)], [[(row, 20) for row in range(20)]]),
        ([500, 90, 600, 333, 1, 700], [[(0, 10), (2, 10), (5, 18), (3, 10)], [(1, 0), (4, 0)]]),
        # Longer than a part; one row ends just behind what is shared.
        ([1600, 1700, 1281, 1900], [[(0, 80), (1, 80), (2, 80), (3, 80)]]),
        # A tree: pages of all, and more of some.
        ([900, 910, 920, 930, 940], [[(0, 9), (1, 50), (2, 9), (3, 9)], [(2, 9), (3, 40)]]),
    ],
    ids=["alike", "apart", "long", "tree"],
)
def test_attention(
    both: tuple[EagerKernels, EagerKernels],
    kv_dtype: torch.dtype,
    group: int,
    num_kv_heads: int,
    head_size: int,
    page_size: int,
    contexts: list[int],
    families: list[list[tuple[int, int]]],
) -> None:
    torch.manual_seed(0)
    kernels, alone = both
    batch = shared_batch(contexts, families, page_size)
    shape = (2, NUM_PAGES * 16 // page_size, num_kv_heads, page_size, head_size)
    pages, _ = stored(kernels, written_pages(batch, shape, torch.float32), kv_dtype)
    q = torch.randn(len(batch.token_ids), group * num_kv_heads, head_size)
    numbers = kept_numbers(kernels, pages, kv_dtype)
    rounded = rounded_queries(kernels, q, kv_dtype, page_size)
    close: dict[str, Any] = attention_tolerance(kernels, kv_dtype, head_size, page_size)
    for window in (None, 5000, 300):
        attended = kernels.attention(q, pages, batch, head_size**-0.5, window)
        expected = REFERENCE.attention(rounded, numbers, batch, head_size**-0.5, window)
        torch.testing.assert_close(attended, expected, **close)
        torch.testing.assert_close(
            attended, alone.attention(q, pages, batch, head_size**-0.5, window), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("num_threads", [1, 4])
def test_contexts_stay_whole_where_there_are_items_enough_for_all_threads(num_threads: int) -> None:
    batch = make_batch([9, 2000], [(512, 4096)], 16, num_pages=400)
    parts, whole = (make_runs(batch, (3, 3, 64), 16, None, num_threads=number) for number in (None, num_threads))
    assert parts.num_partials > 0
    assert sorted(parts.runs[:, 4].tolist())[-1] == 3072
    longest = int((whole.runs[:, 5] - whole.runs[:, 4]).max())
    assert longest == 4096 if num_threads == 1 else 1024 <= longest < 4096
    # Every row's context is there, once.
    for runs in (parts, whole):
        assert int(((runs.runs[:, 5] - runs.runs[:, 4]) * runs.runs[:, 1]).sum()) == 9 + 2000 + 16 * sum(
            range(4096 - 512 + 16, 4097, 16)
        )


def test_what_is_shared_is_read_once_and_not_by_kernels_that_promise_the_same_result_in_any_batch() -> None:
    batch = shared_batch([700] * 20, [[(row, 40) for row in range(20)]], 16)
    heads = (3, 3, 64)

    def num_tokens(window: int | None, *, shares_contexts: bool) -> int:
        runs = make_runs(batch, heads, 16, window, num_threads=2 if shares_contexts else None)
        return int((runs.runs[:, 5] - runs.runs[:, 4])[runs.runs[:, 2] != 70].sum())

    alone = num_tokens(None, shares_contexts=False)
    # Items of sixteen rows at most: two read the 640 tokens, and each row reads its own 60.
    assert alone - num_tokens(None, shares_contexts=True) == 18 * 640
    assert num_tokens(700, shares_contexts=True) == num_tokens(None, shares_contexts=True)
    assert num_tokens(699, shares_contexts=True) == num_tokens(699, shares_contexts=False)
