"""Chooses the numbers that a model runs in: activations, weights and KV.

Knows nothing of kernels but what they can do.
"""

from dataclasses import dataclass

import torch

from chairlift.config.sections import ModelSettings
from chairlift.errors import ConfigurationError
from chairlift.execution.torch_backend.device import computes_bfloat16

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Numbers:
    """What activations and weights are."""

    dtype: torch.dtype
    """Of activations, and of weights that are not quantized."""
    quantization: str
    """``none``, or what ``WeightReader`` does."""

    @property
    def weights(self) -> str:
        """``none``, ``stored`` (as the file has them), ``int8`` or ``q4``."""
        return {"auto": "stored"}.get(self.quantization, self.quantization)

    @property
    def description(self) -> str:
        """For the log."""
        name = str(self.dtype).removeprefix("torch.")
        weights = {"none": "", "auto": " with weights as stored, in 4 or 8 bits,"}
        return name + weights.get(self.quantization, f" with {self.quantization} weights")


def choose_numbers(model: ModelSettings, is_quantized: bool) -> Numbers:
    """Choose for a model whose files hold whole numbers, or floats.

    Weights in blocks are multiplied with activations that are rounded from float32, whatever the CPU can do beside.

    Raises:
        ConfigurationError: the dtype and the quantization asked for exclude each other.
    """
    wants_blocks = model.quantization in ("int8", "q4") or (model.quantization == "auto" and is_quantized)
    if model.dtype == "bfloat16" and wants_blocks:
        if model.quantization != "auto":
            raise ConfigurationError(
                f"--quantization {model.quantization} computes in float32; leave out --dtype bfloat16"
            )
        wants_blocks = False
    quantization = model.quantization if wants_blocks else "none"
    if model.deterministic:
        if model.dtype == "bfloat16":
            raise ConfigurationError("--deterministic computes in float32; leave out --dtype bfloat16")
        return Numbers(torch.float32, quantization)
    if model.dtype != "auto":
        return Numbers(_DTYPES[model.dtype], quantization)
    is_half = computes_bfloat16() and not wants_blocks
    return Numbers(torch.bfloat16 if is_half else torch.float32, quantization)


def choose_kv_dtype(name: str, numbers: Numbers, supported: frozenset[torch.dtype]) -> torch.dtype:
    """Choose for KV pages; int8 beside weights in blocks, where it loses less than the rounding of activations does.

    Raises:
        ConfigurationError: the kernels cannot read such pages.
    """
    if name == "auto":
        return torch.int8 if numbers.quantization != "none" and torch.int8 in supported else numbers.dtype
    dtype = _DTYPES[name]
    if dtype not in supported:
        can = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in supported))
        raise ConfigurationError(
            f"--kv-cache-dtype {name} does not work with the kernels that run here, which can do {can}"
        )
    return dtype
