"""One definition per architecture, and the table that finds it.

Knows nothing of devices: a model calls the kernels that it was given. To add an architecture: a file here, a line in
:data:`MODELS`, and its reading of the configuration in :mod:`weights.hf_config` (and :mod:`weights.gguf_config`).
"""

from collections.abc import Mapping

import torch

from chairlift.config.model_source import ModelSource
from chairlift.errors import ConfigurationError, ModelLoadError
from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.models.llama import Llama
from chairlift.execution.torch_backend.models.mistral import Mistral
from chairlift.execution.torch_backend.models.qwen2 import Qwen2
from chairlift.execution.torch_backend.models.qwen3 import Qwen3
from chairlift.execution.torch_backend.weights import WeightReader, open_checkpoint

__all__ = ["MODELS", "Llama", "load_model"]

MODELS: Mapping[str, type[Llama]] = {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}


def load_model(source: ModelSource, dtype: torch.dtype, kernels: Kernels, max_model_len: int | None = None) -> Llama:
    """Read a model's files and build it, one weight after the other.

    Args:
        source: the folder or GGUF file.
        dtype: of weights and activations.
        kernels: what computes; they pack each weight for themselves.
        max_model_len: positions to prepare for; all that the model was trained for if absent.

    Raises:
        ModelLoadError: the files are damaged, incomplete, or of an unsupported kind.
        ConfigurationError: ``max_model_len`` is more than the model can do.
    """
    checkpoint = open_checkpoint(source)
    try:
        config = checkpoint.config
        longest = config.max_position_embeddings
        if max_model_len is not None and max_model_len > longest:
            raise ConfigurationError(f"--max-model-len is {max_model_len}, but the model is made for {longest} tokens")
        model = MODELS[config.architecture]
        weights = WeightReader(checkpoint, model.weight_shapes(config), dtype)
        return model(config, weights, kernels, max_model_len or longest)
    except ModelLoadError as error:
        raise ModelLoadError(f"{source.path}: {error.message}") from error
    finally:
        checkpoint.close()
