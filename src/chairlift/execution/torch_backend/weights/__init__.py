"""Where weights come from: Hugging Face folders with safetensors, and GGUF files.

Knows nothing of kernels. Pickles are never opened, and no code from a model is ever run.
"""

from typing import TYPE_CHECKING

from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.weights.checkpoint import Checkpoint, WeightReader
from chairlift.execution.torch_backend.weights.gguf_file import GgufCheckpoint
from chairlift.execution.torch_backend.weights.hf_folder import FolderCheckpoint

if TYPE_CHECKING:
    from chairlift.config.model_source import ModelSource

__all__ = ["Checkpoint", "WeightReader", "open_checkpoint"]


def open_checkpoint(source: "ModelSource") -> Checkpoint:
    """Open a model's files and read its configuration; weights are read later, one by one.

    Raises:
        ModelLoadError: files are missing or damaged, or describe a model that cannot be served.
    """
    try:
        return GgufCheckpoint(source.path) if source.kind == "gguf" else FolderCheckpoint(source.path)
    except ModelLoadError as error:
        raise ModelLoadError(f"{source.path}: {error.message}") from error
