"""A model whose forward pass is written down once; later steps only fill in what differs.

Knows nothing of architectures: it calls the model's own forward pass to have it written down.
"""

import torch

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels_native.kernels import NativeKernels
from chairlift.execution.torch_backend.kernels_native.program import Program
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.models import Llama
from chairlift.execution.torch_backend.most_likely import MostLikely


class RecordedModel:
    """Computes what the model computes, with half a millisecond of Python in a step instead of several.

    Args:
        model: built on these kernels.
        kernels: what computes.
        max_rows: rows of a step that the program has room for; larger steps are computed by the model itself.
    """

    def __init__(self, model: Llama, kernels: NativeKernels, max_rows: int) -> None:
        self._model = model
        self._kernels = kernels
        self._max_rows = max_rows
        self._program: Program | None = None
        self._pages: list[int] | None = None

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self._model.config

    def forward(self, batch: ForwardBatch, kv_pages: list[torch.Tensor]) -> torch.Tensor:
        """Compute a step, and return its sampling rows, ``[S, E]``: valid until the next step."""
        self._record(kv_pages)
        if self._program is None or batch.sample_rows is None or not self._program.fits(len(batch.token_ids)):
            return self._model.forward(batch, kv_pages)
        config = self.config
        heads = (config.num_heads // config.num_kv_heads, config.num_kv_heads, config.head_dim)
        return self._kernels.run(self._program, batch, heads, kv_pages[0].shape[3])

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        """``[S, E] -> [S, V]`` in float32."""
        return self._model.logits(hidden_rows)

    def most_likely(self, hidden_rows: torch.Tensor) -> MostLikely:
        """Return the most likely token of each row ``[S, E]``."""
        return self._model.most_likely(hidden_rows)

    def _record(self, kv_pages: list[torch.Tensor]) -> None:
        # Pages lie where they were allocated for as long as an executor lives; another one's need a new program.
        pages = [layer.data_ptr() for layer in kv_pages]
        if pages != self._pages:
            self._pages = pages
            self._program = self._kernels.record(lambda batch: self._model.forward(batch, kv_pages), self._max_rows)
