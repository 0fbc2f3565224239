"""The C++ kernels against the reference kernels, over the shapes of models and for every instruction set here."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.kernels_cpu.threads import WorkerThreads
from chairlift.execution.torch_backend.kernels_native.compilation import CompilationError, compile_library
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library
from chairlift.execution.torch_backend.reference_kernels import ReferenceKernels
from chairlift.execution.torch_backend.weights.blocks import BlockWeight, quantize_int8, quantize_q4
from tests.equivalence.kernels.test_cpu_kernels import NUM_PAGES, make_batch, written_pages

REFERENCE = ReferenceKernels()
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


class EagerKernels:
    """Native kernels whose every result can be read at once."""

    def __init__(self, kernels: NativeKernels) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._kernels, name)

        def call(*arguments: Any) -> Any:
            result = method(*arguments)
            self._kernels.finish()
            return result

        return call


# Every instruction set that this processor has, and the portable code in both widths.
@pytest.fixture(scope="module", params=[("avx512", 2), ("avx2", 1), ("avx2", 3), ("wide", 2), ("generic", 1)], ids=str)
def lazy_kernels(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    name, num_threads = request.param
    try:
        library = open_library(name)
    except LibraryError as error:
        pytest.skip(str(error))
    threads = WorkerThreads(num_threads)
    yield NativeKernels(library, threads)
    threads.close()


@pytest.fixture
def kernels(lazy_kernels: NativeKernels) -> EagerKernels:
    return EagerKernels(lazy_kernels)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 12, 13, 100])
@pytest.mark.parametrize(
    ("outputs", "inputs", "has_bias"), [(960, 576, False), (50, 24, True), (16, 7, False), (1, 1, True)]
)
def test_linear(kernels: EagerKernels, num_rows: int, outputs: int, inputs: int, has_bias: bool) -> None:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    bias = torch.randn(outputs) if has_bias else None
    x = torch.randn(num_rows, inputs)
    actual = kernels.linear(x, kernels.pack_linear(weight, bias))
    assert actual.is_contiguous()
    torch.testing.assert_close(actual, REFERENCE.linear(x, REFERENCE.pack_linear(weight, bias)), **CLOSE)


def rounded_rows(x: torch.Tensor, largest: int) -> torch.Tensor:
    """Rows as the kernels round them: per 32 inputs, the largest number becomes ``largest``."""
    blocks = x.unflatten(1, (-1, 32))
    scale = blocks.abs().amax(dim=2, keepdim=True) / largest
    return (torch.round(blocks / torch.where(scale > 0, scale, torch.inf)) * scale).flatten(1)


@pytest.mark.parametrize(("quantize", "largest"), [(quantize_q4, 127), (quantize_int8, 32767)])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 13, 50])
@pytest.mark.parametrize(("outputs", "inputs", "has_bias"), [(320, 576, False), (50, 32, True), (3, 1536, True)])
def test_linear_in_blocks(
    kernels: EagerKernels,
    quantize: Callable[[torch.Tensor], BlockWeight],
    largest: int,
    num_rows: int,
    outputs: int,
    inputs: int,
    has_bias: bool,
) -> None:
    weight = quantize(torch.randn(outputs, inputs) / inputs**0.5)
    bias = torch.randn(outputs) if has_bias else None
    x = torch.randn(num_rows, inputs) * 10 ** torch.randn(num_rows, 1)
    x[:, :16] = 0
    x[:, 32:64] = 0
    actual = kernels.linear(x, kernels.pack_linear(weight, bias))
    expected = REFERENCE.linear(rounded_rows(x, largest), REFERENCE.pack_linear(weight, bias))
    # The last bit of a rounded number depends on how a quotient was computed.
    size = x.abs().amax(dim=1, keepdim=True) if num_rows else 1.0
    torch.testing.assert_close(actual / size, expected / size, rtol=1e-3, atol=2e-3 if largest == 127 else 1e-5)


def test_extreme_weights_in_four_bits_do_not_overflow(kernels: EagerKernels) -> None:
    weight = BlockWeight(
        torch.full((16, 64), 15, dtype=torch.uint8),
        torch.ones(16, 2, dtype=torch.float16),
        torch.zeros(16, 2, dtype=torch.float16),
    )
    x = torch.full((7, 64), 127.0)
    x[1] *= -1
    actual = kernels.linear(x, kernels.pack_linear(weight))
    assert torch.equal(actual, REFERENCE.linear(x, REFERENCE.pack_linear(weight)))


def test_the_smallest_scales_in_half_precision_count(kernels: EagerKernels) -> None:
    """Scales and minimums of blocks may be subnormal, and minimums negative."""
    smallest = 2.0**-24
    weight = BlockWeight(
        torch.arange(32, dtype=torch.uint8).repeat(16, 1) % 16,
        torch.full((16, 1), 3 * smallest, dtype=torch.float16),
        torch.full((16, 1), -5 * smallest, dtype=torch.float16),
    )
    x = torch.full((2, 32), 127.0)
    actual = kernels.linear(x, kernels.pack_linear(weight))
    assert torch.equal(actual, REFERENCE.linear(x, REFERENCE.pack_linear(weight)))


@pytest.mark.parametrize("quantize", [quantize_q4, quantize_int8, None])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_row(
    kernels: EagerKernels, quantize: Callable[[torch.Tensor], BlockWeight] | None, bad: float
) -> None:
    weight = torch.randn(32, 64)
    packed = kernels.pack_linear(quantize(weight) if quantize else weight)
    x = torch.randn(9, 64)
    x[4, 40] = bad
    y = kernels.linear(x, packed)
    assert not torch.isfinite(y[4]).any()
    assert torch.isfinite(y[:4]).all()
    assert torch.isfinite(y[5:]).all()


@pytest.mark.parametrize("quantize", [quantize_q4, quantize_int8, None])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 576), (208, 1536), (80, 800)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_row_of_a_product_is_the_same_in_any_company(
    kernels: EagerKernels,
    quantize: Callable[[torch.Tensor], BlockWeight] | None,
    outputs: int,
    inputs: int,
    has_bias: bool,
) -> None:
    """Also where many rows have weights widened for them: in pairs of panels, and part by part of a long depth."""
    weight = torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if has_bias else None
    packed = kernels.pack_linear(quantize(weight) if quantize else weight, bias)
    x = torch.randn(38, inputs)
    together = kernels.linear(x, packed)
    for row in (0, 17, 37):
        assert torch.equal(kernels.linear(x[row : row + 1], packed)[0], together[row])


def test_embedding(kernels: EagerKernels) -> None:
    table = quantize_int8(torch.randn(50, 96))
    token_ids = torch.tensor([0, 49, 17, 8, 7, 17])
    for weight in (table, table.dequantized(), quantize_q4(table.dequantized())):
        expected = REFERENCE.embed(token_ids, REFERENCE.pack_embedding(weight))
        assert torch.equal(kernels.embed(token_ids, kernels.pack_embedding(weight)), expected)
    tied = kernels.pack_embedding(table, kernels.pack_linear(table))
    assert torch.equal(kernels.embed(token_ids, tied), table.dequantized()[token_ids])


@pytest.mark.parametrize("num_rows", [0, 1, 5, 200])
@pytest.mark.parametrize("width", [8, 72, 576])
def test_norms(kernels: EagerKernels, num_rows: int, width: int) -> None:
    x, residual, weight = (torch.randn(*shape) for shape in ((num_rows, width), (num_rows, width), (width,)))
    x[:1] *= 1e-3  # where eps decides
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5), **CLOSE)
    ours, theirs = residual.clone(), residual.clone()
    torch.testing.assert_close(
        kernels.add_rms_norm(x, ours, weight, 1e-5), REFERENCE.add_rms_norm(x, theirs, weight, 1e-5), **CLOSE
    )
    assert torch.equal(ours, theirs)


def test_norm_over_heads_that_lie_apart(kernels: EagerKernels) -> None:
    weight = torch.randn(16)
    heads = torch.randn(5, 4 * 16).unflatten(1, (4, 16))[:, 1:3]
    torch.testing.assert_close(kernels.rms_norm(heads, weight, 1e-6), REFERENCE.rms_norm(heads, weight, 1e-6), **CLOSE)


@pytest.mark.parametrize("num_rows", [1, 5, 100])
def test_silu_mul(kernels: EagerKernels, num_rows: int) -> None:
    gate_up = torch.randn(num_rows, 2 * 1500) * 8
    gate_up[0, :6] = torch.tensor([-200.0, 200.0, -89.0, -87.0, 88.5, 0.0])
    gate_up[0, -2:] = torch.tensor([float("nan"), 1.0])
    torch.testing.assert_close(kernels.silu_mul(gate_up), REFERENCE.silu_mul(gate_up), equal_nan=True, **CLOSE)


def test_take_rows(kernels: EagerKernels) -> None:
    x = torch.randn(9, 20)[:, :13]
    rows = torch.tensor([8, 0, 3, 3, 1])
    assert torch.equal(kernels.take_rows(x, rows), x[rows])


def by_input(kv: torch.Tensor) -> torch.Tensor:
    """``[2, P, G, p, d] -> [2, P, G, p * d]``: keys number by number, values token by token."""
    keys, values = kv
    return torch.stack((keys.transpose(-1, -2).flatten(-2), values.flatten(-2)))


def by_token(numbers: torch.Tensor, page_size: int) -> torch.Tensor:
    """The other way round."""
    keys, values = numbers
    return torch.stack((keys.unflatten(-1, (-1, page_size)).transpose(-1, -2), values.unflatten(-1, (page_size, -1))))


def stored(kv: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages as the kernels keep them in a dtype, and as the numbers they stand for."""
    if dtype != torch.int8:
        return by_input(kv.to(dtype)).view(kv.shape), kv.to(dtype).float()
    scale = kv.abs().amax(dim=-1, keepdim=True) / 127
    values = torch.round(kv / scale).nan_to_num()
    pages = torch.cat((by_input(values.to(torch.int8)), scale.view(torch.int8).flatten(-2)), dim=-1)
    return pages.unflatten(-1, (kv.shape[3], -1)), values * scale


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
    pages, numbers = stored(kv, kv_dtype)
    qkv = torch.randn(len(batch.token_ids), num_heads + 2 * num_kv_heads, head_size)
    cos_sin = torch.randn(2200, head_size // 2), torch.randn(2200, head_size // 2)
    q, k, v = qkv.clone().split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    kernels.rope_and_write_kv(q, k, v, cos_sin, batch, pages)
    expected_q, expected_k, expected_v = qkv.clone().split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    REFERENCE.rope_and_write_kv(expected_q, expected_k, expected_v, cos_sin, batch, kv)
    _, numbers = stored(kv, kv_dtype)
    torch.testing.assert_close(q, expected_q, **CLOSE)
    written = kept_numbers(pages, kv_dtype)
    tolerance: dict[str, Any] = CLOSE if kv_dtype == torch.float32 else {"rtol": 1e-2, "atol": 5e-2}
    torch.testing.assert_close(written, numbers, equal_nan=True, **tolerance)
    for window in (None, 1, 10, 300):
        attended = kernels.attention(q, pages, batch, head_size**-0.5, window)
        expected = REFERENCE.attention(q, written, batch, head_size**-0.5, window)
        torch.testing.assert_close(attended, expected, **CLOSE)
        assert torch.isfinite(attended).all()


def _page_tables(batch: ForwardBatch) -> list[torch.Tensor]:
    return [chunk.pages for chunk in batch.prefills]


def kept_numbers(pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What pages stand for."""
    page_size = pages.shape[3]
    numbers = pages.flatten(-2)
    if dtype != torch.int8:
        return by_token(numbers.float(), page_size)
    scales = numbers[..., -4 * page_size :].contiguous().view(torch.float32)
    return by_token(numbers[..., : -4 * page_size].float(), page_size) * scales.unsqueeze(-1)


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
    return kept_numbers(pages, dtype)[1, batch.kv_slots // page_size, 0, batch.kv_slots % page_size]


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
    kv, _ = stored(written_pages(whole, (2, NUM_PAGES, 3, page_size, 64), torch.float32), kv_dtype)
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


def test_operations_are_computed_in_order_at_the_end(lazy_kernels: NativeKernels) -> None:
    """What one operation writes the next one reads, over more operations than one list has room for at first."""
    weight = torch.eye(64)
    packed = lazy_kernels.pack_linear(weight)
    x = first = torch.randn(50, 64)
    for _ in range(600):
        x = lazy_kernels.linear(x, packed)
    lazy_kernels.finish()
    assert torch.equal(x, first)


@pytest.mark.parametrize("quantize", [quantize_q4, quantize_int8])
def test_rounding_on_the_way_changes_nothing(
    lazy_kernels: NativeKernels, quantize: Callable[[torch.Tensor], BlockWeight]
) -> None:
    """Norms and activations round what they return for the product that follows; a product by itself rounds it too."""
    packed = lazy_kernels.pack_linear(quantize(torch.randn(96, 64)))
    x, residual, gate_up, weight = (torch.randn(*shape) for shape in ((37, 64), (37, 64), (37, 128), (64,)))
    for prepare in (
        lambda: lazy_kernels.rms_norm(x, weight, 1e-5),
        lambda: lazy_kernels.add_rms_norm(x, residual, weight, 1e-5),
        lambda: lazy_kernels.silu_mul(gate_up),
    ):
        prepared = prepare()
        product = lazy_kernels.linear(prepared, packed)
        lazy_kernels.finish()
        again = lazy_kernels.linear(prepared, packed)
        lazy_kernels.finish()
        assert torch.equal(product, again)


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
    kv, _ = stored(written_pages(batch, (2, 4 * NUM_PAGES, 2, 16, head_size), torch.float32), torch.int8)
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


def test_only_what_was_written_down_last_is_rounded_on_the_way(lazy_kernels: NativeKernels) -> None:
    packed = lazy_kernels.pack_linear(quantize_q4(torch.randn(96, 64)))
    x, weight = torch.randn(5, 64), torch.randn(64)
    normed = lazy_kernels.rms_norm(x, weight, 1e-5)
    lazy_kernels.finish()
    expected = lazy_kernels.linear(normed, packed)
    lazy_kernels.finish()
    lazy_kernels.rms_norm(x, weight, 1e-5)
    other = lazy_kernels.linear(normed, packed)
    lazy_kernels.finish()
    assert torch.equal(other, expected)


def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.execution.torch_backend.kernels_native import library

    monkeypatch.setattr(library, "source_digest", lambda: "other")
    with pytest.raises(LibraryError, match="make native"):
        open_library()
    with pytest.raises(LibraryError, match="missing"):
        open_library(path=tmp_path / "none.so")


def test_without_a_compiler_compiling_says_so(tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match="no-such-compiler"):
        compile_library(tmp_path / "library.so", compiler="no-such-compiler")
    assert not list(tmp_path.iterdir())
