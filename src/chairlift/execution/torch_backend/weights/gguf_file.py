"""A GGUF file: its metadata, and its tensors dequantized one block of rows at a time.

Knows nothing of the quantization formats themselves: the ``gguf`` package decodes them.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.gguf_reader import ReaderTensor

from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.weights.blocks import BLOCK_SIZE, BlockWeight, fits_blocks, quantize_int8
from chairlift.execution.torch_backend.weights.gguf_config import read_gguf_config

SUPPORTED_TYPES = (
    gguf.GGMLQuantizationType.F32,
    gguf.GGMLQuantizationType.F16,
    gguf.GGMLQuantizationType.BF16,
    gguf.GGMLQuantizationType.Q8_0,
    gguf.GGMLQuantizationType.Q4_0,
    gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.Q5_0,
    gguf.GGMLQuantizationType.Q5_1,
    gguf.GGMLQuantizationType.Q4_K,
    gguf.GGMLQuantizationType.Q5_K,
    gguf.GGMLQuantizationType.Q6_K,
)
_FLOAT_TYPES = SUPPORTED_TYPES[:3]
_VALUES_AT_ONCE = 2**22
_ROPE_DIVISORS = "rope_freqs.weight"
_EMBEDDING = "token_embd.weight"


class _Reader(gguf.GGUFReader):
    """The package's reader, without what takes seconds: the vocabulary is passed over, since it is read elsewhere, and
    the file is a plain array, since slicing a ``memmap`` costs three times as much.
    """

    @property
    def data(self) -> np.ndarray:
        return self._bytes

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._bytes = mapped.view(np.ndarray)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY or int(self._get(orig_offs, np.uint32)[0]) != gguf.GGUFValueType.STRING:
            return super()._get_field_parts(orig_offs, raw_type)
        count, offset = int(self._get(orig_offs + 4, np.uint64)[0]), orig_offs + 12
        memory = self._bytes.data
        for _ in range(count):
            offset += 8 + int.from_bytes(memory[offset : offset + 8], "little")
            if offset > len(memory):
                raise ValueError(f"it is {len(memory)} bytes long, but byte {offset} is needed")
        return offset - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]


class GgufCheckpoint:
    """Implements :class:`~chairlift.execution.torch_backend.weights.checkpoint.Checkpoint`.

    Raises:
        ModelLoadError: the file is damaged, or describes a model that is not supported.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        reader = _open(path)
        self._tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        if _EMBEDDING not in self._tensors:
            raise ModelLoadError(f"the file has no tensor {_EMBEDDING}")
        divisors = self._tensors.pop(_ROPE_DIVISORS, None)
        self._config = read_gguf_config(
            metadata,
            self._tensors.keys(),
            vocab_size=_shape(self._tensors[_EMBEDDING])[0],
            frequency_divisors=None if divisors is None else tuple(_dequantized(divisors, 0, None).tolist()),
        )
        self._shapes = {name: _shape(tensor) for name, tensor in self._tensors.items()}
        self._names = _name_map(self._config)

    @property
    def config(self) -> ModelConfig:
        """What the metadata says."""
        return self._config

    @property
    def stored_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors but rope frequencies, which are part of the configuration."""
        return self._shapes

    @property
    def is_quantized(self) -> bool:
        """Whether whole numbers make up most of the weights."""
        sizes = {tensor.name: math.prod(map(int, tensor.shape)) for tensor in self._tensors.values()}
        floats = sum(sizes[t.name] for t in self._tensors.values() if t.tensor_type in _FLOAT_TYPES)
        return 2 * floats < sum(sizes.values())

    def stored_name(self, name: str) -> str:
        """GGUF's name, such as ``blk.0.attn_q.weight``."""
        return self._names.get_name(name, try_suffixes=(".weight", ".bias")) or name

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Dequantize one tensor, a few million values at a time."""
        tensor = self._tensors[self.stored_name(name)]
        interleaved = self._is_interleaved(name)
        rows_of_unit = self._config.head_dim if interleaved else 1
        rows_at_once = max(1, _VALUES_AT_ONCE // (target[0].numel() * rows_of_unit)) * rows_of_unit
        for start in range(0, len(target), rows_at_once):
            part = target[start : start + rows_at_once]
            values = torch.from_numpy(_dequantized(tensor, start, start + len(part)))
            part.copy_(_halves_from_pairs(values, self._config.head_dim) if interleaved else values)

    def read_blocks(self, name: str) -> BlockWeight | None:
        """Q4_0, Q4_1 and Q8_0 as they are; other kinds of whole numbers rounded to eight bits per 32."""
        tensor = self._tensors[self.stored_name(name)]
        shape = _shape(tensor)
        if tensor.tensor_type in _FLOAT_TYPES or not fits_blocks(shape):
            return None
        if tensor.tensor_type not in _BLOCK_TYPES:
            weight = torch.empty(shape)
            self.read_into(name, weight)
            return quantize_int8(weight)
        blocks = _BLOCK_TYPES[tensor.tensor_type](np.ascontiguousarray(tensor.data).reshape(shape[0], -1))
        if not self._is_interleaved(name):
            return blocks
        head_dim = self._config.head_dim
        return BlockWeight(
            _halves_from_pairs(blocks.values, head_dim),
            _halves_from_pairs(blocks.scales, head_dim),
            None if blocks.minimums is None else _halves_from_pairs(blocks.minimums, head_dim),
        )

    def close(self) -> None:
        """Let go of the mapped file."""
        self._tensors.clear()

    def _is_interleaved(self, name: str) -> bool:
        return self._config.architecture == "llama" and (".q_proj." in name or ".k_proj." in name)


def _q4_1(rows: np.ndarray) -> BlockWeight:
    blocks = rows.reshape(len(rows), -1, 4 + BLOCK_SIZE // 2)  # [N, B, bytes]: scale, minimum, nibbles
    numbers = blocks[:, :, :4].copy().view("<f2")  # [N, B, 2]
    return BlockWeight(_nibbles(blocks[:, :, 4:]), _half_tensor(numbers[:, :, 0]), _half_tensor(numbers[:, :, 1]))


def _q4_0(rows: np.ndarray) -> BlockWeight:
    blocks = rows.reshape(len(rows), -1, 2 + BLOCK_SIZE // 2)  # scale, nibbles; weight = scale * (q - 8)
    scales = blocks[:, :, :2].copy().view("<f2")[:, :, 0]
    return BlockWeight(_nibbles(blocks[:, :, 2:]), _half_tensor(scales), _half_tensor(scales * np.float16(-8)))


def _q8_0(rows: np.ndarray) -> BlockWeight:
    blocks = rows.reshape(len(rows), -1, 2 + BLOCK_SIZE)  # scale, bytes
    scales = blocks[:, :, :2].copy().view("<f2")[:, :, 0]
    values = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(len(rows), -1)
    return BlockWeight(torch.from_numpy(values), _half_tensor(scales), None)


_BLOCK_TYPES: Mapping[gguf.GGMLQuantizationType, Callable[[np.ndarray], BlockWeight]] = {
    gguf.GGMLQuantizationType.Q4_0: _q4_0,
    gguf.GGMLQuantizationType.Q4_1: _q4_1,
    gguf.GGMLQuantizationType.Q8_0: _q8_0,
}


def _nibbles(packed: np.ndarray) -> torch.Tensor:
    """``[N, B, 16] -> [N, 32 B]``: a block's first half lies in the low nibbles."""
    return torch.from_numpy(np.concatenate((packed & 15, packed >> 4), axis=2).reshape(len(packed), -1))


def _half_tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, np.float16))


def _open(path: Path) -> _Reader:
    try:
        return _Reader(path)
    except (OSError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise ModelLoadError(f"cannot read this GGUF file: {error}") from error


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _dequantized(tensor: ReaderTensor, start: int, stop: int | None) -> np.ndarray:
    """Rows ``[start, stop)`` in float32."""
    if tensor.tensor_type not in SUPPORTED_TYPES:
        supported = ", ".join(kind.name for kind in SUPPORTED_TYPES)
        raise ModelLoadError(
            f"tensor {tensor.name} has type {tensor.tensor_type.name}, which is not supported; supported: {supported}"
        )
    return np.array(gguf.dequantize(tensor.data[start:stop], tensor.tensor_type), dtype=np.float32)


def _halves_from_pairs(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Undo llama.cpp's order of query and key rows::

    within a head, in GGUF     0, d/2, 1, d/2 + 1, ...   (neighbours rotate together)
    within a head, here        0, 1, ... | d/2, d/2 + 1, ...   (halves rotate together)
    """
    pairs = values.unflatten(0, (-1, head_dim // 2, 2))  # [heads, d / 2, 2, ...]
    return pairs.transpose(1, 2).flatten(0, 2)


def _name_map(config: ModelConfig) -> Any:
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(kinds[config.architecture], config.num_layers)
