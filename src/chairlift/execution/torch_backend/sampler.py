"""Choosing the next token of every sampling row at once.

Knows nothing of models or plans. What a row yields is a function of its own logits, parameters, seed and position:
rows are only ever grouped, never mixed, and every number that decides is computed per row in an order that does not
depend on the other rows. A row's randomness is one uniform number keyed by its seed and the index of the new token.

A row that samples is cut by threshold, then drawn from by inverting its cumulative distribution in vocabulary order::

    logits / temperature  -> min_p -> top_k -> top_p  = keep what is >= threshold  -> softmax -> draw

Each cut renormalises what the one before left. Tokens that tie with the last one kept are kept too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.core.step_plan import TokenLogprobs
from chairlift.execution.torch_backend.batch import SamplingRows
from chairlift.execution.torch_backend.logit_edits import LogitEdit, edit_logits
from chairlift.execution.torch_backend.logprobs import describe_tokens
from chairlift.execution.torch_backend.most_likely import MostLikely, most_likely
from chairlift.execution.torch_backend.random_bits import uniforms
from chairlift.execution.torch_backend.request_table import LOGPROBS, RequestTable
from chairlift.execution.torch_backend.torch_draw import Draw, draw_tokens

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, and the rows from which none could be drawn (their token is meaningless)."""

    token_ids: NDArray[np.int64]
    failed_rows: tuple[int, ...]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict[int, TokenLogprobs])
    """By row, where they were asked for."""
    broken_rows: tuple[int, ...] = ()
    """The failed rows of which a possible token's logit is no number, or infinite: the others have no possible one."""


def is_greedy(table: RequestTable, rows: SamplingRows) -> bool:
    """Whether all rows want their most likely token, and nothing else is asked of their logits."""
    return not (table.wishes[rows.table_rows].any() or _draws(table.sampling[rows.table_rows]).any())


def sample_greedily(found: MostLikely) -> Sampled:
    """Choose the most likely tokens, as :func:`sample` does where :func:`is_greedy`."""
    failed, broken = _failures(found.logits)
    found.token_ids[failed] = 0
    return Sampled(found.token_ids, tuple(failed.tolist()), broken_rows=broken)


def sample(
    logits: torch.Tensor,
    table: RequestTable,
    rows: SamplingRows,
    draw: Draw = draw_tokens,
    edits: Sequence[LogitEdit] = (),
) -> Sampled:
    """Choose a token for each row.

    Args:
        logits: float32 [S, V] on the CPU; may be changed.
        table: tokens and parameters of all requests.
        rows: which request each row belongs to, and the index of the new token.
        draw: how tokens are drawn from rows that are not greedy.
        edits: what changes logits before the draw, beside what the sampling parameters ask for.
    """
    columns = table.sampling[rows.table_rows]
    wishes = table.wishes[rows.table_rows]
    raw, described = None, np.empty(0, np.int64)
    if wishes.any():
        described = np.flatnonzero(wishes & LOGPROBS)
        raw = logits[torch.from_numpy(described)] if len(described) else None  # a copy: the model's own numbers
        edit_logits(logits, table, rows, wishes)
        for edit in edits:
            edit(logits, table, rows)
    chosen, best = most_likely(logits)
    failed, broken = _failures(best)
    draws = _draws(columns)
    draws[failed] = False
    chosen[failed] = 0
    drawn = np.flatnonzero(draws)
    if len(drawn):
        drawn_columns = columns[drawn]
        numbers = uniforms(np.ascontiguousarray(drawn_columns["seed"]), rows.positions[drawn])
        chosen[drawn] = draw(logits, torch.from_numpy(best), drawn, drawn_columns, numbers)
    if raw is None:
        return Sampled(chosen, tuple(failed.tolist()), broken_rows=broken)
    logprobs = describe_tokens(raw, chosen[described], columns["logprobs"][described])
    return Sampled(chosen, tuple(failed.tolist()), dict(zip(described.tolist(), logprobs, strict=True)), broken)


def _draws(columns: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which rows draw their token."""
    return (columns["temperature"] > 0.0) & (columns["top_k"] != 1)


def _failures(best: NDArray[np.float32]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Return rows without a token, and those of them whose logits are broken, by their highest logits."""
    failed = np.flatnonzero(~np.isfinite(best))
    return failed, tuple(failed[best[failed] != _NEVER].tolist())
