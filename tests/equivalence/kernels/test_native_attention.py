"""Attention and KV pages of the C++ kernels against the reference kernels, for every instruction set here."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.weights.blocks import BlockWeight, quantize_int8, quantize_q4
from tests.equivalence.kernels.eager_kernels import CLOSE, REFERENCE, EagerKernels
from tests.equivalence.kernels.native_pages import (
    attention_tolerance,
    is_for_tiles,
    kept_numbers,
    rounded_queries,
    stored,
)
from tests.equivalence.kernels.test_cpu_kernels import NUM_PAGES, make_batch, written_pages


@pytest.mark.parametrize(
    ("kv_dtype", "num_heads", "num_kv_heads", "head_size", "page_size"),
    [
        (torch.float32, 9, 3, 64, 16),
        (torch.float32, 14, 2, 48, 1),
        (torch.float32, 2, 1, 16, 300),
        (torch.bfloat16, 8, 1, 16, 5),
        (torch.int8, 9, 3, 64, 16),
        (torch.int8, 4, 2, 128, 32),
        (torch.int8, 3, 3, 16, 5),
        (torch.int8, 2, 1, 16, 300),  # segments of 256 tokens begin within pages
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("decodes", "chunks"),
    [([5, 33, 700], [(7, 7), (40, 90), (1, 300)]), ([1], []), ([256, 257, 2100], [(2, 1025)])],
    ids=str,
)
def test_rotation_kv_write_and_attention(
    kernels: EagerKernels,
    kv_dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    page_size: int,
    decodes: list[int],
    chunks: list[tuple[int, int]],
) -> None:
    batch = make_batch(decodes, chunks, page_size, num_pages=4 * NUM_PAGES // page_size + 16)
    num_pages = 1 + max(int(table.max()) for table in (batch.decode_page_tables, *_page_tables(batch)) if table.numel())
    kv = written_pages(batch, (2, num_pages, num_kv_heads, page_size, head_size), torch.float32)
    pages, numbers = stored(kernels, kv, kv_dtype)
    qkv = torch.randn(len(batch.token_ids), num_heads + 2 * num_kv_heads, head_size)
    cos_sin = torch.randn(2200, head_size // 2), torch.randn(2200, head_size // 2)
    q, k, v = qkv.clone().split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    kernels.rope_and_write_kv(q, k, v, cos_sin, batch, pages)
    expected_q, expected_k, expected_v = qkv.clone().split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    REFERENCE.rope_and_write_kv(expected_q, expected_k, expected_v, cos_sin, batch, kv)
    _, numbers = stored(kernels, kv, kv_dtype)
    torch.testing.assert_close(q, expected_q, **CLOSE)
    written = kept_numbers(kernels, pages, kv_dtype)
    tolerance: dict[str, Any] = CLOSE if kv_dtype == torch.float32 else {"rtol": 1e-2, "atol": 5e-2}
    torch.testing.assert_close(written, numbers, equal_nan=True, **tolerance)
    rounded = rounded_queries(kernels, q, kv_dtype, page_size)
    close: dict[str, Any] = attention_tolerance(kernels, kv_dtype, head_size, page_size)
    for window in (None, 1, 10, 300):
        attended = kernels.attention(q, pages, batch, head_size**-0.5, window)
        expected = REFERENCE.attention(rounded, written, batch, head_size**-0.5, window)
        torch.testing.assert_close(attended, expected, **close)
        assert torch.isfinite(attended).all()


def _page_tables(batch: ForwardBatch) -> list[torch.Tensor]:
    return [chunk.pages for chunk in batch.prefills]


def pages_of_values(kernels: EagerKernels, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Write one head's values ``[T, d]`` to pages; return what the pages stand for, token by token."""
    num_rows, head_size = values.shape
    page_size = 4
    batch = make_batch([], [(num_rows, num_rows)], page_size, num_pages=num_rows)
    width = head_size + 4 if dtype == torch.int8 else head_size
    pages = torch.zeros(2, num_rows, 1, page_size, width, dtype=dtype)
    turns = torch.ones(num_rows, head_size // 2), torch.zeros(num_rows, head_size // 2)
    q, k = torch.randn(2, num_rows, 1, head_size)
    kernels.rope_and_write_kv(q, k, values.unsqueeze(1), turns, batch, pages)
    return kept_numbers(kernels, pages, dtype)[1, batch.kv_slots // page_size, 0, batch.kv_slots % page_size]


def test_pages_in_bfloat16_hold_the_nearest_numbers(kernels: EagerKernels) -> None:
    values = torch.randn(7, 16)
    values[1] = 1 + torch.arange(16) * 2**-8  # every other one lies in the middle: ties go to even
    values[2] = -values[1]
    values[3, ::2] = torch.tensor([0x7FFFFFFF, 0x7F800001, 0x7FC00000, -1] * 2, dtype=torch.int32).view(torch.float32)
    values[4, :2] = torch.tensor([float("inf"), -float("inf")])
    values[5] = torch.finfo(torch.float32).max
    written = pages_of_values(kernels, values, torch.bfloat16)
    torch.testing.assert_close(written, values.bfloat16().float(), rtol=0, atol=0, equal_nan=True)


def test_pages_in_int8_hold_the_nearest_numbers_and_what_is_not_finite_stays_so(kernels: EagerKernels) -> None:
    values = torch.randn(8, 16) * 10 ** torch.arange(-3.0, 5.0).unsqueeze(1)
    values[1] = 0
    values[3, 5], values[4, 0], values[6, 15] = float("nan"), float("inf"), -float("inf")
    written = pages_of_values(kernels, values, torch.int8)
    is_bad = torch.tensor([row in (3, 4, 6) for row in range(8)])
    assert not torch.isfinite(written[is_bad]).any()
    good, kept = values[~is_bad], written[~is_bad]
    largest = good.abs().amax(1, keepdim=True)
    assert ((kept - good).abs() <= largest / 127 * 0.5001).all()
    torch.testing.assert_close(kept.abs().amax(1, keepdim=True), largest, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("window", [None, 70, 400])
def test_attention_of_a_row_is_the_same_however_the_prompt_was_cut(
    kernels: EagerKernels, kv_dtype: torch.dtype, window: int | None
) -> None:
    """Bit for bit: the same row in one long chunk, in a short chunk, and as a decode among others."""
    context, page_size = 1300, 16
    whole = make_batch([], [(context, context)], page_size)
    kv, _ = stored(kernels, written_pages(whole, (2, NUM_PAGES, 3, page_size, 64), torch.float32), kv_dtype)
    q = torch.randn(context, 9, 64)
    expected = kernels.attention(q, kv, whole, 0.125, window)
    pages = whole.prefills[0].pages
    for length in (1, 7, 300):
        rows = slice(context - length, context)
        part = dataclasses.replace(whole, prefills=[PrefillRows(0, length, context, pages)])
        assert torch.equal(kernels.attention(q[rows].clone(), kv, part, 0.125, window), expected[rows])
    contexts = torch.tensor([1, 257, 1024, 1025, context], dtype=torch.int32)
    decodes = dataclasses.replace(
        whole,
        num_decodes=len(contexts),
        prefills=[],
        decode_page_tables=pages.int().expand(len(contexts), -1).contiguous(),
        decode_context_lengths=contexts,
    )
    rows = contexts.long() - 1
    assert torch.equal(kernels.attention(q[rows], kv, decodes, 0.125, window), expected[rows])


@pytest.mark.parametrize("quantize", [quantize_q4, quantize_int8])
@pytest.mark.parametrize("head_size", [64, 48])
@pytest.mark.parametrize(
    ("decodes", "chunks"), [([5, 700], [(40, 90)]), ([256, 1025, 2100, 1024], [(2, 1025), (30, 1030)])], ids=str
)
def test_attention_rounds_what_it_returns_whether_its_context_is_in_parts_or_not(
    lazy_kernels: NativeKernels,
    quantize: Callable[[torch.Tensor], BlockWeight],
    head_size: int,
    decodes: list[int],
    chunks: list[tuple[int, int]],
) -> None:
    """A head of 48 inputs is no whole number of blocks of 32: rounding is then an operation by itself."""
    batch = make_batch(decodes, chunks, 16, num_pages=4 * NUM_PAGES)
    written = written_pages(batch, (2, 4 * NUM_PAGES, 2, 16, head_size), torch.float32)
    kv, _ = stored(EagerKernels(lazy_kernels), written, torch.int8)
    packed = lazy_kernels.pack_linear(quantize(torch.randn(96, 6 * head_size)))
    q = torch.randn(len(batch.token_ids), 6, head_size)
    for _ in range(2):  # the second time in memory that the first one left
        attended = lazy_kernels.attention(q, kv, batch, 0.125, None)
        product = lazy_kernels.linear(attended, packed)
        lazy_kernels.finish()
        copy = attended.clone()
        again = lazy_kernels.linear(copy, packed)
        lazy_kernels.finish()
        assert torch.equal(product, again)
        assert torch.isfinite(product).all()


@pytest.mark.parametrize("decodes", [[150, 240], []], ids=str)
def test_a_value_that_is_no_number_hurts_only_rows_that_see_it(kernels: EagerKernels, decodes: list[int]) -> None:
    if not is_for_tiles(kernels, torch.int8, 64, 16):
        pytest.skip("these kernels multiply what a row does not see by zero")
    batch = make_batch(decodes, [(300, 300)], 16, num_pages=NUM_PAGES)
    kv = written_pages(batch, (2, NUM_PAGES, 2, 16, 64), torch.float32)
    q = torch.randn(len(batch.token_ids), 6, 64)
    sound = kernels.attention(q, stored(kernels, kv, torch.int8)[0], batch, 0.125, None)
    for place in (0, 100, 205, 299):
        spoilt = kv.clone()
        spoilt[1, batch.prefills[0].pages[place // 16], :, place % 16, 3] = torch.nan
        attended = kernels.attention(q, stored(kernels, spoilt, torch.int8)[0], batch, 0.125, None)
        first = len(decodes) + place
        assert torch.equal(attended[:first], sound[:first])
        assert torch.isnan(attended[first:]).all()
