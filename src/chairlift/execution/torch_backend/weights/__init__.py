"""Where weights come from: Hugging Face folders with safetensors, and GGUF files.

Knows nothing of kernels. Pickles are never opened, and no code from a model is ever run.
"""

from chairlift.config.gguf_metadata import read_gguf_metadata
from chairlift.config.model_source import ModelSource
from chairlift.errors import ModelLoadError
from chairlift.execution.torch_backend.weights.checkpoint import Checkpoint, WeightReader
from chairlift.execution.torch_backend.weights.gguf_file import GgufCheckpoint
from chairlift.execution.torch_backend.weights.hf_folder import FolderCheckpoint

__all__ = ["Checkpoint", "WeightReader", "open_checkpoint"]


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Open a model's files and read its configuration; weights are read later, one by one.

    Raises:
        ModelLoadError: files are missing or damaged, or describe a model that cannot be served.
    """
    metadata = read_gguf_metadata(source.path) if source.kind == "gguf" else None
    try:
        return FolderCheckpoint(source.path) if metadata is None else GgufCheckpoint(source.path, metadata)
    except ModelLoadError as error:
        raise ModelLoadError(f"{source.path}: {error.message}") from error
