"""Few rows times weights of four bits that lie as for tiles: in whole numbers, unless a batch must not matter."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from chairlift.execution.torch_backend.weights.blocks import quantize_q4
from tests.equivalence.kernels.both_kinds import both_kinds
from tests.equivalence.kernels.eager_kernels import REFERENCE, EagerKernels

MOST_FEW_ROWS = 8


@pytest.fixture(scope="module", params=["amx", "tiles"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[EagerKernels, EagerKernels]]:
    """Kernels that compute few rows in their own way, and such that do not."""
    yield from both_kinds(request.param)


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows in bfloat16, whose largest number of 32 then becomes 127."""
    blocks = x.bfloat16().float().unflatten(1, (-1, 32))
    scale = blocks.abs().amax(dim=2, keepdim=True) / 127
    return (torch.round(blocks / torch.where(scale > 0, scale, torch.inf)) * scale).flatten(1)


@pytest.mark.parametrize("num_rows", range(1, MOST_FEW_ROWS + 1))
@pytest.mark.parametrize(("outputs", "inputs", "has_bias"), [(320, 576, False), (50, 32, True), (3, 1536, True)])
def test_linear(
    both: tuple[EagerKernels, EagerKernels], num_rows: int, outputs: int, inputs: int, has_bias: bool
) -> None:
    torch.manual_seed(num_rows)
    weight = quantize_q4(torch.randn(outputs, inputs) / inputs**0.5)
    bias = torch.randn(outputs) if has_bias else None
    x = torch.randn(num_rows, inputs) * 10 ** torch.randn(num_rows, 1)
    x[:, :16] = 0
    actual = both[0].linear(x, both[0].pack_linear(weight, bias))
    expected = REFERENCE.linear(rounded_rows(x), REFERENCE.pack_linear(weight, bias))
    size = x.abs().amax(dim=1, keepdim=True)
    # The last bit of a rounded number depends on how a quotient was computed.
    torch.testing.assert_close(actual / size, expected / size, rtol=1e-3, atol=2e-3)


def test_a_row_does_not_depend_on_the_other_few(both: tuple[EagerKernels, EagerKernels]) -> None:
    torch.manual_seed(0)
    kernels = both[0]
    packed = kernels.pack_linear(quantize_q4(torch.randn(96, 576)), torch.randn(96))
    x = torch.randn(MOST_FEW_ROWS, 576)
    together = kernels.linear(x, packed)
    for count in range(1, MOST_FEW_ROWS):
        assert torch.equal(kernels.linear(x[:count], packed), together[:count])


@pytest.mark.parametrize("num_rows", [1, 5, 8])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_mlp(both: tuple[EagerKernels, EagerKernels], num_rows: int, has_bias: bool) -> None:
    torch.manual_seed(num_rows)
    kernels = both[0]

    def packed(outputs: int, inputs: int) -> Any:
        weight = quantize_q4(torch.randn(outputs, inputs) / inputs**0.5)
        return kernels.pack_linear(weight, torch.randn(outputs) if has_bias else None)

    gate_up, down = packed(2 * 96, 576), packed(80, 96)
    x = torch.randn(num_rows, 576)
    expected = kernels.linear(kernels.silu_mul(kernels.linear(x, gate_up)), down)
    torch.testing.assert_close(kernels.gated_mlp(x, gate_up, down), expected, rtol=1e-3, atol=1e-3)


def test_more_rows_and_invariant_kernels_use_tiles(both: tuple[EagerKernels, EagerKernels]) -> None:
    torch.manual_seed(0)
    few, invariant = both
    packed = few.pack_linear(quantize_q4(torch.randn(96, 576)))
    x = torch.randn(MOST_FEW_ROWS + 1, 576)
    many = few.linear(x, packed)
    assert torch.equal(many, invariant.linear(x, packed))
    assert torch.equal(invariant.linear(x[:3], packed), many[:3])
    assert not torch.equal(few.linear(x[:3], packed), many[:3])


def test_what_is_not_finite_stays_so(both: tuple[EagerKernels, EagerKernels]) -> None:
    x = torch.randn(4, 64)
    x[1, 5], x[2, 40] = torch.nan, torch.inf
    outputs = both[0].linear(x, both[0].pack_linear(quantize_q4(torch.randn(32, 64))))
    assert torch.isfinite(outputs).all(dim=1).tolist() == [True, False, False, True]
