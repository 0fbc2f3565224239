"""Mistral: Llama with a sliding window in every layer (versions 0.1), or without one (later versions).

Knows nothing of how windows are kept: :attr:`ModelConfig.windows` says them per layer, kernels mask by them.
"""

from chairlift.execution.torch_backend.models.llama import Llama


class Mistral(Llama):
    """Llama's computation; what differs is in the configuration."""
