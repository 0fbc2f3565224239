"""What every kind of model file offers, and the checked way to read weights from it.

Knows nothing of file formats. Weights are named as in Hugging Face's models.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.weights.blocks import (
    BlockWeight,
    fits_blocks,
    join_blocks,
    quantize_int8,
    quantize_q4,
)

_NAMES_SHOWN = 5


class Checkpoint(Protocol):
    """An open model: its configuration, and tensors to be read one at a time."""

    @property
    def config(self) -> ModelConfig:
        """What the model is."""
        ...

    @property
    def stored_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor by the name it has in the file, without those that carry nothing to load."""
        ...

    @property
    def is_quantized(self) -> bool:
        """Whether most of the weights are stored as whole numbers."""
        ...

    def stored_name(self, name: str) -> str:
        """The name in the file of the weight ``name``."""
        ...

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Fill ``target`` with the weight ``name``, converting to its dtype. Shapes must be equal.

        Raises:
            ModelLoadError: the tensor's type is not supported.
        """
        ...

    def read_blocks(self, name: str) -> BlockWeight | None:
        """Return the weight ``name`` in blocks if the file stores whole numbers, as they are where blocks can be so."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class WeightReader:
    """Reads the weights of one model in one dtype, after checking that the files hold exactly those.

    Args:
        checkpoint: the open files.
        shapes: every weight of the model.
        dtype: of floats.
        product_dtype: of floats that rows are multiplied with, if another.
        quantization: of weights that rows are multiplied with: ``none``; ``auto``, blocks where the file stores
            blocks; ``int8`` or ``q4``, blocks made here where the file has none. See :meth:`read_linear`.

    Raises:
        ModelLoadError: tensors are missing, unexpected or of another shape; the message names them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        quantization: str = "none",
        product_dtype: torch.dtype | None = None,
    ) -> None:
        _check_tensors(checkpoint, shapes)
        self.dtype = dtype
        self._product_dtype = product_dtype or dtype
        self._checkpoint = checkpoint
        self._shapes = shapes
        self._quantization = quantization

    def read(self, *names: str) -> torch.Tensor:
        """Return the named weights as one tensor, joined along the first axis."""
        return self._read(names, self.dtype)

    def _read(self, names: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
        first = self._shapes[names[0]]
        rows = [self._shapes[name][0] for name in names]
        joined = torch.empty((sum(rows), *first[1:]), dtype=dtype)
        for name, part in zip(names, joined.split(rows), strict=True):
            self._checkpoint.read_into(name, part)
        return joined

    def read_linear(self, *names: str, is_table: bool = False) -> torch.Tensor | BlockWeight:
        """Like :meth:`read`, but in the products' dtype, or in blocks if quantization wants and the shape allows it.

        Tables (embedding and output head) are made into eight bits even by ``q4``: they hold every token's own row,
        and four bits show there first.
        """
        if self._quantization == "none" or not all(fits_blocks(self._shapes[name]) for name in names):
            return self._read(names, self._product_dtype)
        has_few_bits = self._quantization == "q4" and not is_table
        parts = [self._blocks(name, has_few_bits) for name in names]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return self._read(names, self._product_dtype)
        if len({part.minimums is None for part in found}) > 1:
            found = [part if part.minimums is None else quantize_int8(part.dequantized()) for part in found]
        return join_blocks(found)

    def _blocks(self, name: str, has_few_bits: bool) -> BlockWeight | None:
        stored = self._checkpoint.read_blocks(name)
        if self._quantization == "auto" or (stored is not None and (stored.minimums is not None) == has_few_bits):
            return stored
        weight = self.read(name)
        return quantize_q4(weight) if has_few_bits else quantize_int8(weight)

    def read_if_any(self, *names: str) -> torch.Tensor | None:
        """Like :meth:`read`, but ``None`` where the model has no such weights."""
        return self.read(*names) if names[0] in self._shapes else None


def _check_tensors(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    expected = {checkpoint.stored_name(name): shape for name, shape in shapes.items()}
    stored = checkpoint.stored_shapes
    problems = [
        _listed("missing tensors", [name for name in expected if name not in stored]),
        _listed("unexpected tensors", [name for name in stored if name not in expected]),
        _listed(
            "tensors of the wrong shape",
            [
                f"{name} is {list(stored[name])} instead of {list(shape)}"
                for name, shape in expected.items()
                if name in stored and stored[name] != shape
            ],
        ),
    ]
    if any(problems):
        architecture = checkpoint.config.architecture
        raise ModelLoadError(f"not the weights of this {architecture} model: " + "; ".join(filter(None, problems)))


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_NAMES_SHOWN])}{more}"
