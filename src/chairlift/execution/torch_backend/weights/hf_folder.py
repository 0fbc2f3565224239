"""A Hugging Face model folder: ``config.json`` and safetensors, in one file or in shards with an index.

Knows nothing of architectures beyond their names for tensors.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.weights.blocks import BlockWeight
from chairlift.execution.torch_backend.weights.hf_config import read_hf_config

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_SUPPORTED_TYPES = ("F64", "F32", "F16", "BF16")


class FolderCheckpoint:
    """Implements :class:`~chairlift.execution.torch_backend.weights.checkpoint.Checkpoint`.

    Raises:
        ModelLoadError: files are missing or damaged, or the configuration is not supported.
    """

    def __init__(self, folder: Path) -> None:
        self._config = read_hf_config(folder)
        self._files = ExitStack()
        self._handles: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        try:
            for file_name in _weight_files(folder):
                self._add_file(folder / file_name)
        except BaseException:
            self.close()
            raise

    @property
    def config(self) -> ModelConfig:
        """What ``config.json`` says."""
        return self._config

    @property
    def stored_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors but rotary buffers of old models, and copies of tied embeddings."""
        return self._shapes

    @property
    def is_quantized(self) -> bool:
        """Never: safetensors hold floats here."""
        return False

    def stored_name(self, name: str) -> str:
        """The name itself."""
        return name

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Copy one tensor; its file is mapped, so only this tensor is read."""
        stored_type = self._handles[name].get_slice(name).get_dtype()
        if stored_type not in _SUPPORTED_TYPES:
            supported = ", ".join(_SUPPORTED_TYPES)
            raise ModelLoadError(f"tensor {name} has type {stored_type}, not supported; supported: {supported}")
        target.copy_(self._handles[name].get_tensor(name))

    def read_blocks(self, name: str) -> BlockWeight | None:
        """Nothing: safetensors hold floats here."""
        return None

    def close(self) -> None:
        """Close all files."""
        self._handles.clear()
        self._files.close()

    def _add_file(self, path: Path) -> None:
        try:
            handle = self._files.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"cannot read {path.name}: {error}") from error
        for name in handle.keys():  # noqa: SIM118 - not a mapping
            if self._carries_weights(name):
                self._handles[name] = handle
                self._shapes[name] = tuple(handle.get_slice(name).get_shape())

    def _carries_weights(self, name: str) -> bool:
        tied_copy = self._config.tie_word_embeddings and name == "lm_head.weight"
        return not tied_copy and not name.endswith("rotary_emb.inv_freq")


def _weight_files(folder: Path) -> list[str]:
    if (folder / _SINGLE_FILE).exists():
        return [_SINGLE_FILE]
    if not (folder / _INDEX_FILE).exists():
        raise ModelLoadError(f"neither {_SINGLE_FILE} nor {_INDEX_FILE} is there; other weight formats are never read")
    try:
        index = json.loads((folder / _INDEX_FILE).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"cannot read {_INDEX_FILE}: {error!r}") from error
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelLoadError(f"{_INDEX_FILE} names {name!r}, which is not a safetensors file of this folder")
    return names
