"""Qwen 2 and 2.5: Llama with biases on queries, keys and values, and windows in upper layers of some models.

Knows nothing of devices, requests or where weights come from.
"""

from chairlift.execution.torch_backend.models.llama import Llama


class Qwen2(Llama):
    """Llama's computation; what differs is in the configuration (``qkv_bias``, ``windows``)."""
