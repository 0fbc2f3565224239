"""Runs a model over KV pages without scheduler or executor: each call is one step with the chunks that it is told.

Knows nothing of sampling. Pages are handed out in random order and start filled with NaN, so that reading a slot that
nobody wrote shows at once.
"""

import random
from dataclasses import dataclass, field
from typing import Protocol

import torch

from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.model_config import ModelConfig


class PagedModel(Protocol):
    """What a runner needs of a model."""

    config: ModelConfig
    dtype: torch.dtype

    def forward(self, batch: ForwardBatch, kv_pages: list[torch.Tensor]) -> torch.Tensor: ...

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor: ...


@dataclass
class PagedRequest:
    """One sequence, and how much of it lies in pages."""

    token_ids: list[int]
    num_computed: int = 0
    pages: list[int] = field(default_factory=list[int])


class PagedRunner:
    """Pages for one model, and steps over them."""

    def __init__(self, model: PagedModel, *, num_pages: int = 64, page_size: int = 4, seed: int = 0) -> None:
        config = model.config
        dtype = model.dtype
        shape = (2, num_pages, config.num_kv_heads, page_size, config.head_dim)
        self._model = model
        self._page_size = page_size
        self._kv = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(config.num_layers)]
        self._free = list(range(num_pages))
        random.Random(seed).shuffle(self._free)

    def step(self, *work: tuple[PagedRequest, int]) -> list[torch.Tensor]:
        """Compute the next so many tokens of each request; returns each request's logits, ``[tokens, V]``.

        Requests with exactly one token to compute, and some already computed, run as decodes.
        """
        ordered = sorted(work, key=lambda item: not self._is_decode(*item))
        for request, length in ordered:
            needed = -(-(request.num_computed + length) // self._page_size)
            request.pages.extend(self._free.pop() for _ in range(needed - len(request.pages)))
        hidden = self._model.forward(self._batch(ordered), self._kv)
        logits = self._model.logits(hidden)
        results: dict[int, torch.Tensor] = {}
        for (request, length), part in zip(ordered, logits.split([length for _, length in ordered]), strict=True):
            request.num_computed += length
            results[id(request)] = part
        return [results[id(request)] for request, _ in work]

    def run(self, token_ids: list[int], *lengths: int) -> torch.Tensor:
        """Compute one sequence in steps of these lengths, the rest token by token; returns all logits."""
        request = PagedRequest(token_ids)
        rest = len(token_ids) - sum(lengths)
        return torch.cat([self.step((request, length))[0] for length in (*lengths, *[1] * rest)])

    @staticmethod
    def _is_decode(request: PagedRequest, length: int) -> bool:
        return length == 1 and request.num_computed > 0

    def _batch(self, ordered: list[tuple[PagedRequest, int]]) -> ForwardBatch:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        prefills: list[PrefillRows] = []
        for request, length in ordered:
            span = range(request.num_computed, request.num_computed + length)
            if not self._is_decode(request, length):
                prefills.append(PrefillRows(len(tokens), length, span.stop, torch.tensor(request.pages)))
            tokens.extend(request.token_ids[span.start : span.stop])
            positions.extend(span)
            slots.extend(request.pages[at // self._page_size] * self._page_size + at % self._page_size for at in span)
        decodes = [request for request, length in ordered if self._is_decode(request, length)]
        tables = torch.zeros((len(decodes), max((len(r.pages) for r in decodes), default=0)), dtype=torch.int32)
        for row, request in enumerate(decodes):
            tables[row, : len(request.pages)] = torch.tensor(request.pages)
        return ForwardBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            kv_slots=torch.tensor(slots),
            num_decodes=len(decodes),
            decode_page_tables=tables,
            decode_context_lengths=torch.tensor([r.num_computed + 1 for r in decodes], dtype=torch.int32),
            prefills=prefills,
        )
