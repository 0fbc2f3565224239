"""The C++ kernels against the reference kernels, over the shapes of models and for every instruction set here.

Attention has a file of its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.kernels_native.compilation import CompilationError, compile_library
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.library import LibraryError, open_library
from chairlift.execution.torch_backend.weights.blocks import BlockWeight, quantize_int8, quantize_q4
from tests.equivalence.kernels.eager_kernels import CLOSE, REFERENCE, EagerKernels

QUANTIZERS: dict[str, Callable[[torch.Tensor], torch.Tensor | BlockWeight]] = {
    "float": torch.Tensor.float,
    "half": torch.Tensor.bfloat16,
    "int8": quantize_int8,
    "q4": quantize_q4,
}


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
    size = x.abs().amax(dim=1, keepdim=True) if num_rows else 1.0
    if kernels.has_tiles():
        # Rows and weights in bfloat16, sums in float32.
        expected = torch.nn.functional.linear(x.bfloat16().float(), weight.dequantized().bfloat16().float(), bias)
        torch.testing.assert_close(actual / size, expected / size, rtol=1e-3, atol=2e-4)
        return
    expected = REFERENCE.linear(rounded_rows(x, largest), REFERENCE.pack_linear(weight, bias))
    # The last bit of a rounded number depends on how a quotient was computed.
    torch.testing.assert_close(actual / size, expected / size, rtol=1e-3, atol=2e-3 if largest == 127 else 1e-5)


@pytest.mark.parametrize("num_rows", [0, 1, 16, 17, 50, 600])
@pytest.mark.parametrize(("outputs", "inputs", "has_bias"), [(320, 576, False), (50, 32, True), (96, 2080, True)])
def test_linear_with_weights_in_bfloat16(
    kernels: EagerKernels, num_rows: int, outputs: int, inputs: int, has_bias: bool
) -> None:
    weight = (torch.randn(outputs, inputs) / inputs**0.5).bfloat16()
    bias = torch.randn(outputs) if has_bias else None
    x = torch.randn(num_rows, inputs)
    actual = kernels.linear(x, kernels.pack_linear(weight, bias))
    rounded = x.bfloat16().float() if kernels.has_tiles() else x
    expected = torch.nn.functional.linear(rounded, weight.float(), bias)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "next_kind"), [(kind, kind) for kind in QUANTIZERS] + [("q4", "float")])
@pytest.mark.parametrize("num_rows", [0, 1, 16, 33, 600])
@pytest.mark.parametrize(("width", "inputs", "has_bias"), [(96, 576, False), (40, 64, True), (16, 800, True)])
def test_a_gated_mlp_is_two_products(
    kernels: EagerKernels, kind: str, next_kind: str, num_rows: int, width: int, inputs: int, has_bias: bool
) -> None:
    def packed(outputs: int, depth: int, name: str) -> Any:
        weight = torch.randn(outputs, depth) / depth**0.5
        fits = depth % 32 == 0 or name not in ("int8", "q4")
        return kernels.pack_linear(
            QUANTIZERS[name](weight) if fits else weight, torch.randn(outputs) if has_bias else None
        )

    gate_up, down = packed(2 * width, inputs, kind), packed(80, width, next_kind)
    x = torch.randn(num_rows, inputs)
    expected = kernels.linear(kernels.silu_mul(kernels.linear(x, gate_up)), down)
    torch.testing.assert_close(kernels.gated_mlp(x, gate_up, down), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", QUANTIZERS)
@pytest.mark.parametrize("num_rows", [0, 1, 33, 300])
@pytest.mark.parametrize(("outputs", "inputs", "has_bias"), [(1000, 576, False), (47, 64, True), (5, 32, True)])
def test_argmax_is_that_of_all_outputs(
    kernels: EagerKernels, kind: str, num_rows: int, outputs: int, inputs: int, has_bias: bool
) -> None:
    weight = torch.randn(outputs, inputs)
    weight[3::7] = weight[2]  # equal ones: the first counts
    x = torch.randn(num_rows, inputs)
    # All outputs below zero in some rows: what fills up the last panel must not be found.
    packed = kernels.pack_linear(QUANTIZERS[kind](weight), torch.full((outputs,), -1e3) if has_bias else None)
    logits = kernels.linear(x, packed)
    found = kernels.argmax(x, packed)
    expected = logits.numpy().argmax(axis=-1)
    assert found.token_ids.tolist() == expected.tolist()
    assert found.logits.tolist() == logits.numpy().max(axis=-1, initial=-torch.inf).tolist()


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_argmax_of_what_is_not_a_number(kernels: EagerKernels, kind: str) -> None:
    x = torch.randn(20, 64)
    x[3, 5], x[4] = torch.nan, torch.inf
    found = kernels.argmax(x, kernels.pack_linear(QUANTIZERS[kind](torch.randn(40, 64))))
    finite = torch.isfinite(torch.from_numpy(found.logits)).tolist()
    assert finite == [row not in (3, 4) for row in range(20)]


@pytest.mark.parametrize("num_rows", [5, 8])
def test_a_gate_in_float32_is_not_overwritten_while_it_is_read(kernels: EagerKernels, num_rows: int) -> None:
    """Rounded rows are written while other threads read the product that they come from."""
    gate_up = kernels.pack_linear(torch.randn(2 * 1024, 72) / 8)
    down = kernels.pack_linear(quantize_q4(torch.randn(72, 1024) / 32))
    x = torch.randn(num_rows, 72)
    expected = kernels.linear(kernels.silu_mul(kernels.linear(x, gate_up)), down)
    for _ in range(30):
        assert torch.equal(kernels.gated_mlp(x, gate_up, down), expected)


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
