"""Choosing the next token of every sampling row at once.

Knows nothing of models or plans. What a row yields is a function of its own logits, parameters, seed and position:
rows are only ever grouped, never mixed, and every number that decides is computed per row in an order that does not
depend on the other rows. A row's randomness is one uniform number keyed by its seed and the index of the new token.

A row that samples is cut by threshold, then drawn from by inverting its cumulative distribution in vocabulary order::

    logits / temperature  -> min_p -> top_k -> top_p  = keep what is >= threshold  -> softmax -> draw

Each cut renormalises what the one before left. Tokens that tie with the last one kept are kept too.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.execution.torch_backend.batch import SamplingRows
from chairlift.execution.torch_backend.penalties import apply_penalties, forbid_stop_tokens
from chairlift.execution.torch_backend.random_bits import uniforms
from chairlift.execution.torch_backend.request_table import RequestTable

_FIRST_CANDIDATES = 256
"""Most likely tokens looked at first; rows whose cut lies behind them are sorted whole."""
_BLOCK = 64
"""Tokens whose probabilities are summed before the cumulative sum, so that only one block is searched in detail."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, and the rows whose logits were no numbers (their token is meaningless)."""

    token_ids: NDArray[np.int64]
    failed_rows: tuple[int, ...]


def sample(logits: torch.Tensor, table: RequestTable, rows: SamplingRows) -> Sampled:
    """Choose a token for each row.

    Args:
        logits: float32 [S, V] on the CPU; may be changed.
        table: tokens and parameters of all requests.
        rows: which request each row belongs to, and the index of the new token.
    """
    apply_penalties(logits, table, rows.table_rows, rows.positions)
    forbid_stop_tokens(logits, table, rows.table_rows, rows.positions)
    best, token_ids = logits.max(dim=-1)  # [S] each
    failed = np.flatnonzero(~np.isfinite(best.numpy()))
    chosen = token_ids.numpy()
    columns = table.sampling[rows.table_rows]
    draws = (columns["temperature"] > 0.0) & (columns["top_k"] != 1)
    draws[failed] = False
    chosen[failed] = 0
    drawn = np.flatnonzero(draws)
    if len(drawn):
        columns = columns[drawn]
        scaled = _scaled(logits, best, drawn, columns)
        _cut(scaled, columns)
        numbers = uniforms(np.ascontiguousarray(columns["seed"]), rows.positions[drawn])
        chosen[drawn] = _draw(scaled, torch.from_numpy(numbers)).numpy()
    return Sampled(chosen, tuple(failed.tolist()))


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
    everything = _block_ends(torch.where(some >= floors, some, float("-inf")).exp_())[1][:, -1]  # [R]
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
    blocks, cumulative = _block_ends(scaled.exp_())
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


def _block_ends(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``weights [R, V]`` as blocks [R, B, block], and the cumulative sum at each block's end, float64 [R, B].

    Short sums first: torch may split one long sum over threads, and then its rounding would depend on the batch.
    """
    padding = -weights.shape[1] % _BLOCK
    if padding:
        weights = torch.nn.functional.pad(weights, (0, padding))
    blocks = weights.view(len(weights), -1, _BLOCK)
    return blocks, blocks.sum(dim=-1).double().cumsum(dim=-1)


def _column(columns: NDArray[np.void], name: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(columns[name])).unsqueeze(1)
