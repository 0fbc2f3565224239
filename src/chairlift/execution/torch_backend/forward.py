"""One step as tensors: what a model's forward pass reads beside its weights.

Knows nothing of plans or policies; :mod:`batch` makes these from plans.

Rows of a step::

    [0, num_decodes)            one row per decoding request
    [row_start, row_start + length) for each prefill chunk, padding rows included
"""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """The rows of one prefill chunk, and where its context lies."""

    row_start: int
    length: int
    context_length: int
    """Tokens of the request that the chunk's last row may see, itself included."""
    pages: torch.Tensor
    """int64 [pages that hold the context], on the model's device."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """All tensors of a step, on the model's device."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    kv_slots: torch.Tensor  # int64 [T], page * page_size + offset, where the row's KV is written
    num_decodes: int
    decode_page_tables: torch.Tensor  # int32 [D, P'], rows padded with page 0
    decode_context_lengths: torch.Tensor  # int32 [D], the row itself included
    prefills: list[PrefillRows] = field(default_factory=list[PrefillRows])
    sample_rows: torch.Tensor | None = None  # int64 [S], rows that need logits; None: all of them
