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
from chairlift.execution.torch_backend.torch_draw import Draw, draw_tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, and the rows whose logits were no numbers (their token is meaningless)."""

    token_ids: NDArray[np.int64]
    failed_rows: tuple[int, ...]


def sample(logits: torch.Tensor, table: RequestTable, rows: SamplingRows, draw: Draw = draw_tokens) -> Sampled:
    """Choose a token for each row.

    Args:
        logits: float32 [S, V] on the CPU; may be changed.
        table: tokens and parameters of all requests.
        rows: which request each row belongs to, and the index of the new token.
        draw: how tokens are drawn from rows that are not greedy.
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
        numbers = uniforms(np.ascontiguousarray(columns["seed"]), rows.positions[drawn])
        chosen[drawn] = draw(logits, best, drawn, columns, numbers)
    return Sampled(chosen, tuple(failed.tolist()))
