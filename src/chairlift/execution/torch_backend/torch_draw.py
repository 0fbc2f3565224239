"""Drawing tokens in plain torch, for any device: rows that were cut by threshold, by inverting their distribution.

Knows nothing of penalties or requests. Every number that decides is computed per row, in an order that does not depend
on the other rows.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

Draw = Callable[
    [torch.Tensor, torch.Tensor, NDArray[np.int64], NDArray[np.void], NDArray[np.float64]], NDArray[np.int64]
]
"""``draw(logits, best, rows, columns, numbers)``: one token for each of ``rows [R]`` of the float32 ``logits [S, V]``.

``best [S]`` has the highest logit of each row; ``columns [R]`` the sampling parameters (``SAMPLING_COLUMNS``) and
``numbers [R]`` one uniform number in [0, 1) of each listed row. May change the logits.
"""

_FIRST_CANDIDATES = 256
"""Most likely tokens looked at first; rows whose cut lies behind them are sorted whole."""
_BLOCK = 64
"""Tokens whose probabilities are summed before the cumulative sum, so that only one block is searched in detail."""


def draw_tokens(
    logits: torch.Tensor,
    best: torch.Tensor,
    rows: NDArray[np.int64],
    columns: NDArray[np.void],
    numbers: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Implements :data:`Draw` for a few rows at a time."""
    scaled = _scaled(logits, best, rows, columns)
    _cut(scaled, columns)
    return _draw(scaled, torch.from_numpy(numbers)).numpy()


def _scaled(
    logits: torch.Tensor, best: torch.Tensor, drawn: NDArray[np.int64], columns: NDArray[np.void]
) -> torch.Tensor:
    """Return ``(logits - best) / temperature`` of the drawn rows: 0 for the most likely token."""
    index = torch.from_numpy(drawn)
    everything = len(drawn) == len(logits)
    scaled = logits if everything else logits[index]  # [R, V]
    scaled -= best[index].unsqueeze(1)
    return scaled.div_(_column(columns, "temperature"))


def _cut(scaled: torch.Tensor, columns: NDArray[np.void]) -> None:
    """Set what the row's own ``min_p``, ``top_k`` and ``top_p`` drop to -inf, in place."""
    with np.errstate(divide="ignore"):
        floor = np.log(columns["min_p"])
    vocab_size = scaled.shape[1]
    ranked = ((columns["top_k"] > 0) & (columns["top_k"] < vocab_size)) | (columns["top_p"] < 1.0)
    pending = np.flatnonzero(ranked)
    num_candidates = min(_FIRST_CANDIDATES, vocab_size)
    while len(pending):
        thresholds, settled = _ranked_thresholds(scaled, pending, columns[pending], floor[pending], num_candidates)
        floor[pending[settled]] = thresholds[settled]
        pending = pending[~settled]
        num_candidates = vocab_size
    limited = np.flatnonzero(floor > -np.inf)
    if len(limited):
        index = torch.from_numpy(limited)
        kept = scaled[index]
        scaled[index] = kept.masked_fill_(kept < torch.from_numpy(floor[limited]).unsqueeze(1), float("-inf"))


def _ranked_thresholds(
    scaled: torch.Tensor,
    rows: NDArray[np.int64],
    columns: NDArray[np.void],
    floor: NDArray[np.float32],
    num_candidates: int,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the value of the last token that each row keeps, and whether the candidates sufficed to know it."""
    vocab_size = scaled.shape[1]
    some = scaled[torch.from_numpy(rows)]
    values = some.topk(num_candidates, dim=-1).values  # [R, K], falling; only values are used, so ties cannot matter
    top_k = np.where(columns["top_k"] > 0, np.minimum(columns["top_k"], vocab_size), vocab_size)
    in_top_k = torch.arange(num_candidates) < torch.from_numpy(top_k).unsqueeze(1)
    floors = torch.from_numpy(floor).unsqueeze(1)
    weights = torch.where(in_top_k & (values >= floors), values.double().exp(), 0.0)
    cumulative = weights.cumsum(dim=-1)  # [R, K]
    everything = block_ends(torch.where(some >= floors, some, float("-inf")).exp_())[1][:, -1]  # [R]
    covered = (
        torch.from_numpy(top_k <= num_candidates) | (values[:, -1] < floors[:, 0]) | (num_candidates == vocab_size)
    )
    total = torch.where(covered, cumulative[:, -1], everything)
    before = cumulative - weights
    kept = (weights > 0) & (before < _column(columns, "top_p").double() * total.unsqueeze(1))
    num_kept = kept.sum(dim=-1).clamp_(min=1)  # the most likely token stays, whatever rounding does
    thresholds = values.gather(1, (num_kept - 1).unsqueeze(1)).squeeze(1)
    settled = covered | ((num_kept < num_candidates) & torch.from_numpy(top_k >= vocab_size))
    return thresholds.numpy(), settled.numpy()


def _draw(scaled: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Draw one token per row from ``softmax(scaled)`` by inversion; ``numbers`` are uniform in [0, 1)."""
    blocks, cumulative = block_ends(scaled.exp_())
    target = numbers.unsqueeze(1) * cumulative[:, -1:]  # [R, 1]
    block = (cumulative <= target).sum(dim=-1, keepdim=True)  # [R, 1], first block whose end lies behind the target
    block.clamp_(max=cumulative.shape[1] - 1)
    start = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)
    inner = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, _BLOCK)).squeeze(1)  # [R, block]
    inner_cumulative = inner.double().cumsum(dim=-1)
    offset = (inner_cumulative <= target - start).sum(dim=-1, keepdim=True)
    # Block sums are rounded, so a target may lie a hair behind the block's last token: take the last that has weight.
    last = (inner_cumulative < inner_cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(offset, last)).squeeze(1)


def block_ends(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``weights [R, V]`` as blocks [R, B, block], and the cumulative sum at each block's end, float64 [R, B].

    Short sums first: torch may split one long sum over threads, and then its rounding would depend on the batch.
    """
    padding = -weights.shape[1] % _BLOCK
    if padding:
        weights = torch.nn.functional.pad(weights, (0, padding))
    blocks = weights.view(len(weights), -1, _BLOCK)
    return blocks, blocks.sum(dim=-1).double().cumsum(dim=-1)


def _column(columns: NDArray[np.void], name: str) -> torch.Tensor:
    return torch.from_numpy(columns[name].copy()).unsqueeze(1)
