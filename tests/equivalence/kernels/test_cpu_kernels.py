"""The compiled CPU kernels against the reference kernels, over the shapes that models have."""

import dataclasses
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.kernels_cpu.kernels import CpuKernels
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels

REFERENCE = ReferenceKernels()
NUM_PAGES = 1200
TOLERANCES: dict[torch.dtype, Any] = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2},
}


@pytest.fixture(scope="module", params=[(torch.float32, 1), (torch.float32, 3), (torch.bfloat16, 2)], ids=str)
def kernels(request: pytest.FixtureRequest):
    compiled = CpuKernels(*request.param)
    yield compiled
    compiled.close()


@pytest.fixture
def dtype(kernels: CpuKernels) -> torch.dtype:
    return kernels.dtype


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 12, 13, 100])
@pytest.mark.parametrize(
    ("outputs", "inputs", "has_bias"), [(960, 576, False), (50, 24, True), (16, 7, False), (1, 1, True)]
)
def test_linear(
    kernels: CpuKernels, dtype: torch.dtype, num_rows: int, outputs: int, inputs: int, has_bias: bool
) -> None:
    weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype) if has_bias else None
    x = torch.randn(num_rows, inputs).to(dtype)
    actual = kernels.linear(x, kernels.pack_linear(weight, bias))
    expected = REFERENCE.linear(x, REFERENCE.pack_linear(weight, bias))
    assert actual.is_contiguous()
    torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


def test_a_row_of_a_product_is_the_same_in_any_company(kernels: CpuKernels, dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        pytest.skip("oneDNN chooses its algorithm by the number of rows")
    packed = kernels.pack_linear(torch.randn(96, 576))
    x = torch.randn(70, 576)
    together = kernels.linear(x, packed)
    for row in (0, 33, 69):
        assert torch.equal(kernels.linear(x[row : row + 1], packed)[0], together[row])


@pytest.mark.parametrize("num_rows", [0, 1, 5, 200])
@pytest.mark.parametrize("width", [8, 72, 576])
def test_norms(kernels: CpuKernels, dtype: torch.dtype, num_rows: int, width: int) -> None:
    x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((num_rows, width), (num_rows, width), (width,)))
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5), **TOLERANCES[dtype]
    )
    ours, theirs = residual.clone(), residual.clone()
    torch.testing.assert_close(
        kernels.add_rms_norm(x, ours, weight, 1e-5),
        REFERENCE.add_rms_norm(x, theirs, weight, 1e-5),
        **TOLERANCES[dtype],
    )
    assert torch.equal(ours, theirs)


def test_norm_over_heads(kernels: CpuKernels, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 3, 16).to(dtype), torch.randn(16).to(dtype)
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-6), REFERENCE.rms_norm(x, weight, 1e-6), **TOLERANCES[dtype]
    )


@pytest.mark.parametrize("num_rows", [1, 5, 100])
def test_silu_mul(kernels: CpuKernels, dtype: torch.dtype, num_rows: int) -> None:
    gate_up = (torch.randn(num_rows, 2 * 1536) * 8).to(dtype)
    gate_up[0, :6] = torch.tensor([-200.0, 200.0, -89.0, -87.0, 88.5, 0.0])
    torch.testing.assert_close(kernels.silu_mul(gate_up), REFERENCE.silu_mul(gate_up), **TOLERANCES[dtype])


def make_batch(
    decodes: list[int], chunks: list[tuple[int, int]], page_size: int, *, num_pages: int = NUM_PAGES
) -> ForwardBatch:
    """A step with decodes of these context lengths and chunks of (length, context length), on random pages."""
    free = torch.randperm(num_pages).tolist()
    positions: list[int] = []
    slots: list[int] = []
    tables: list[list[int]] = []
    prefills: list[PrefillRows] = []
    for length, context in [*((1, context) for context in decodes), *chunks]:
        pages = [free.pop() for _ in range(-(-context // page_size))]
        if len(tables) < len(decodes):
            tables.append(pages)
        else:
            prefills.append(PrefillRows(len(positions), length, context, torch.tensor(pages)))
        for position in range(context - length, context):
            positions.append(position)
            slots.append(pages[position // page_size] * page_size + position % page_size)
    width = max(map(len, tables), default=0)
    return ForwardBatch(
        token_ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=torch.tensor(positions),
        kv_slots=torch.tensor(slots),
        num_decodes=len(decodes),
        decode_page_tables=torch.tensor(
            [table + [0] * (width - len(table)) for table in tables], dtype=torch.int32
        ).reshape(len(decodes), width),
        decode_context_lengths=torch.tensor(decodes, dtype=torch.int32),
        prefills=prefills,
    )


def written_pages(batch: ForwardBatch, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Pages with random context, and what is not a number wherever nobody wrote."""
    kv = torch.full(shape, float("nan"), dtype=dtype)
    page_size = shape[3]
    requests = [*zip(batch.decode_page_tables.long(), batch.decode_context_lengths.tolist(), strict=True)]
    requests += [(chunk.pages, chunk.context_length) for chunk in batch.prefills]
    for pages, context in requests:
        positions = torch.arange(context)
        kv[:, pages[positions // page_size], :, positions % page_size] = torch.randn(context, 2, shape[2], shape[4]).to(
            dtype
        )
    return kv


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "page_size"),
    [(9, 3, 64, 16), (4, 4, 8, 4), (14, 2, 24, 1), (8, 1, 16, 5), (4, 2, 128, 32), (4, 2, 12, 4), (2, 1, 8, 300)],
)
@pytest.mark.parametrize(
    ("decodes", "chunks"),
    [([5, 33, 700], [(7, 7), (40, 90), (1, 300)]), ([], [(100, 100)]), ([1], []), ([256, 257, 16, 17], [(2, 257)])],
    ids=str,
)
def test_rotation_kv_write_and_attention(
    kernels: CpuKernels,
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    page_size: int,
    decodes: list[int],
    chunks: list[tuple[int, int]],
) -> None:
    num_pages = NUM_PAGES // page_size + 16
    batch = make_batch(decodes, chunks, page_size, num_pages=num_pages)
    kv = written_pages(batch, (2, num_pages, num_kv_heads, page_size, head_size), dtype)
    qkv = torch.randn(len(batch.token_ids), num_heads + 2 * num_kv_heads, head_size).to(dtype)
    cos_sin = torch.randn(800, head_size // 2), torch.randn(800, head_size // 2)
    results: list[list[torch.Tensor]] = []
    for implementation in (kernels, REFERENCE):
        pages = kv.clone()
        q, k, v = qkv.clone().split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        implementation.rope_and_write_kv(q, k, v, cos_sin, batch, pages)
        attended = [implementation.attention(q, pages, batch, head_size**-0.5, w) for w in (None, 1, 10, 300)]
        results.append([q, pages, *attended])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, **TOLERANCES[dtype])
    assert all(torch.isfinite(result).all() for result in results[0][2:])


@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_a_row_is_the_same_however_the_prompt_was_cut(
    kernels: CpuKernels, dtype: torch.dtype, window: int | None
) -> None:
    """Bit for bit: the same row in one long chunk, in a short chunk, and as a decode among others."""
    context, page_size = 530, 16
    whole = make_batch([], [(context, context)], page_size)
    kv = written_pages(whole, (2, NUM_PAGES, 3, page_size, 64), dtype)
    q = torch.randn(context, 9, 64).to(dtype)
    expected = kernels.attention(q, kv, whole, 0.125, window)
    pages = whole.prefills[0].pages
    for length in (1, 7, 300):
        rows = slice(context - length, context)
        part = dataclasses.replace(whole, prefills=[PrefillRows(0, length, context, pages)])
        assert torch.equal(kernels.attention(q[rows].clone(), kv, part, 0.125, window), expected[rows])
    contexts = torch.tensor([1, 200, 257, context], dtype=torch.int32)
    decodes = dataclasses.replace(
        whole,
        num_decodes=4,
        prefills=[],
        decode_page_tables=pages.int().expand(4, -1).contiguous(),
        decode_context_lengths=contexts,
    )
    rows = contexts.long() - 1
    assert torch.equal(kernels.attention(q[rows], kv, decodes, 0.125, window), expected[rows])
