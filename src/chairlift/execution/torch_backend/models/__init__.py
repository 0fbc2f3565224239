"""One definition per architecture, and the table that finds it.

Knows nothing of devices: a model calls the kernels that it was given. To add an architecture: a file here, a line in
:data:`MODELS`, and its reading of the configuration in :mod:`weights.hf_config` (and :mod:`weights.gguf_config`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from chairlift.config.model_source import ModelSource
from chairlift.errors import ConfigurationError, ModelLoadError
from chairlift.execution.torch_backend.kernels import Kernels
from chairlift.execution.torch_backend.models.llama import Llama
from chairlift.execution.torch_backend.models.mistral import Mistral
from chairlift.execution.torch_backend.models.qwen2 import Qwen2
from chairlift.execution.torch_backend.models.qwen3 import Qwen3
from chairlift.execution.torch_backend.weights import Checkpoint, WeightReader, open_checkpoint

__all__ = ["MODELS", "Llama", "load_model", "opened", "read_model"]

MODELS: Mapping[str, type[Llama]] = {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}


@contextmanager
def opened(source: ModelSource) -> Iterator[Checkpoint]:
    """Open a model's files; whatever is wrong with them is said with their path.

    Raises:
        ModelLoadError: the files are damaged, incomplete, or of an unsupported kind.
    """
    checkpoint = open_checkpoint(source)
    try:
        yield checkpoint
    except ModelLoadError as error:
        raise ModelLoadError(f"{source.path}: {error.message}") from error
    finally:
        checkpoint.close()


def read_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    kernels: Kernels,
    max_model_len: int | None = None,
    *,
    quantization: str = "none",
    product_dtype: torch.dtype | None = None,
) -> Llama:
    """Build a model from its open files, one weight after the other.

    Args:
        checkpoint: the files.
        dtype: of activations, and of weights that are not quantized.
        product_dtype: of weights that rows are multiplied with, if another.
        kernels: what computes; they pack each weight for themselves.
        max_model_len: positions to prepare for; all that the model was trained for if absent.
        quantization: of the weights that rows are multiplied with, see ``WeightReader``.

    Raises:
        ModelLoadError: the files are damaged, incomplete, or of an unsupported kind.
        ConfigurationError: ``max_model_len`` is more than the model can do.
    """
    config = checkpoint.config
    longest = config.max_position_embeddings
    if max_model_len is not None and max_model_len > longest:
        raise ConfigurationError(f"--max-model-len is {max_model_len}, but the model is made for {longest} tokens")
    model = MODELS[config.architecture]
    weights = WeightReader(checkpoint, model.weight_shapes(config), dtype, quantization, product_dtype)
    return model(config, weights, kernels, max_model_len or longest)


def load_model(
    source: ModelSource,
    dtype: torch.dtype,
    kernels: Kernels,
    max_model_len: int | None = None,
    *,
    quantization: str = "none",
    product_dtype: torch.dtype | None = None,
) -> Llama:
    """Open a model's files and build it: :func:`opened` and :func:`read_model`."""
    with opened(source) as checkpoint:
        return read_model(
            checkpoint, dtype, kernels, max_model_len, quantization=quantization, product_dtype=product_dtype
        )
