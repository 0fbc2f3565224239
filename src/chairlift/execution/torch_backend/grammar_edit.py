"""Rules out what the grammars of the step's requests do not allow: one more edit of logits.

Knows nothing of grammars; masks come from :mod:`chairlift.structured.masks`.
"""

import numpy as np
import torch

from chairlift.execution.torch_backend.batch import SamplingRows
from chairlift.execution.torch_backend.request_table import GRAMMAR, RequestTable
from chairlift.structured.masks import GrammarMasks, GrammarState, unpack

_NEVER = float("-inf")


class GrammarEdit:
    """Implements :data:`~.logit_edits.LogitEdit`."""

    def __init__(self, masks: GrammarMasks) -> None:
        self._masks = masks

    def __call__(self, logits: torch.Tensor, table: RequestTable, rows: SamplingRows) -> None:
        """Set what is not allowed to -inf, in place; where a grammar failed, everything."""
        held = np.flatnonzero(table.wishes[rows.table_rows] & GRAMMAR)
        if not len(held):
            return
        num_prompt_tokens = table.sampling["num_prompt_tokens"][rows.table_rows]
        shown: list[tuple[GrammarState, list[int]]] = []
        for row in held:
            state = table.grammars[int(rows.table_rows[row])]
            unread = slice(num_prompt_tokens[row] + state.num_read, rows.positions[row])
            shown.append((state, table.token_ids[rows.table_rows[row], unread].tolist()))
        allowed = unpack(self._masks.masks(shown), logits.shape[1])  # [R, V]
        index = torch.from_numpy(held)
        kept = logits[index].masked_fill_(torch.from_numpy(~allowed), _NEVER)  # [R, V]
        self._let_end(kept, table, rows, held, allowed)
        logits[index] = kept

    def _let_end(
        self, kept: torch.Tensor, table: RequestTable, rows: SamplingRows, held: np.ndarray, allowed: np.ndarray
    ) -> None:
        """Where only an end token is left and ``min_tokens`` forbids it, the end of the grammar counts."""
        columns = table.sampling[rows.table_rows[held]]
        early = rows.positions[held] - columns["num_prompt_tokens"] < columns["min_tokens"]
        for row in np.flatnonzero(early):
            stops = table.stop_token_ids[rows.table_rows[held[row]]]
            possible = stops[allowed[row, stops]]
            if len(possible) and not bool(torch.isfinite(kept[row]).any()):
                kept[row, torch.from_numpy(possible)] = 0.0
