"""What requests add to logits or rule out before a token is drawn, for all rows of a step at once.

Knows nothing of probabilities. Edits are applied one after the other; whatever else changes rows, such as the mask of a
grammar, is one more :data:`LogitEdit` handed to :func:`~.sampler.sample`::

    logits -> bias -> penalties -> allowed tokens -> bad words -> end tokens too early -> further edits -> draw

What is ruled out becomes -inf. A row where nothing is left fails, and its request ends with an error.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.execution.torch_backend.batch import SamplingRows
from chairlift.execution.torch_backend.penalties import apply_penalties
from chairlift.execution.torch_backend.request_table import MIN_TOKENS, PENALTIES, TOKEN_EDITS, RequestTable
from chairlift.execution.torch_backend.token_edits import TokenEdits

LogitEdit = Callable[[torch.Tensor, RequestTable, SamplingRows], None]
"""``edit(logits, table, rows)`` changes rows of the float32 ``logits [S, V]`` on the CPU, in place.

Row ``i`` belongs to the request in row ``rows.table_rows[i]`` of the table and yields its token at
``rows.positions[i]``. What happens to a row depends on its own request alone, and rows that do not ask for the edit
cost next to nothing.
"""

_NEVER = np.float32(-np.inf)


def edit_logits(logits: torch.Tensor, table: RequestTable, rows: SamplingRows, wishes: NDArray[np.uint8]) -> None:
    """Apply, in place, what sampling parameters ask for; ``wishes [S]`` are those of the rows' requests."""
    numbers = logits.numpy()
    edited = np.flatnonzero(wishes & TOKEN_EDITS)
    edits = [edits for row in rows.table_rows[edited] if (edits := table.edits[row]) is not None]
    if edits:
        _add_bias(numbers, edited, edits)
    if (wishes & PENALTIES).any():
        apply_penalties(logits, table, rows.table_rows, rows.positions)
    if edits:
        _keep_allowed(numbers, edited, edits)
        _forbid_bad(numbers, edited, edits, table, rows)
    if (wishes & MIN_TOKENS).any():
        columns = table.sampling[rows.table_rows]
        early = np.flatnonzero(rows.positions - columns["num_prompt_tokens"] < columns["min_tokens"])
        if len(early):
            _forbid(numbers, early, (table.stop_token_ids[row] for row in rows.table_rows[early]))


def _add_bias(logits: NDArray[np.float32], rows: NDArray[np.int64], edits: Sequence[TokenEdits]) -> None:
    places = _places(rows, [one.biased_ids for one in edits])
    # No token stands twice in a request's bias, so no place is listed twice.
    logits[places] += np.concatenate([one.biases for one in edits])


def _keep_allowed(logits: NDArray[np.float32], rows: NDArray[np.int64], edits: Sequence[TokenEdits]) -> None:
    chosen = [(row, one.allowed_ids) for row, one in zip(rows, edits, strict=True) if one.allowed_ids is not None]
    if not chosen:
        return
    limited = np.array([row for row, _ in chosen], np.int64)
    places = _places(limited, [ids for _, ids in chosen])
    kept = logits[places]
    logits[limited] = _NEVER
    logits[places] = kept


def _forbid_bad(
    logits: NDArray[np.float32],
    edited: NDArray[np.int64],
    edits: Sequence[TokenEdits],
    table: RequestTable,
    rows: SamplingRows,
) -> None:
    _forbid(logits, edited, (one.bad_ids for one in edits))
    long = [(row, one) for row, one in zip(edited.tolist(), edits, strict=True) if len(one.tails)]
    for row, one in long:
        table_row = int(rows.table_rows[row])
        outputs = table.token_ids[table_row, table.sampling["num_prompt_tokens"][table_row] : rows.positions[row]]
        logits[row, one.find_bad_ids(outputs)] = _NEVER


def _forbid(logits: NDArray[np.float32], rows: NDArray[np.int64], token_ids: Iterable[NDArray[np.int64]]) -> None:
    logits[_places(rows, list(token_ids))] = _NEVER


def _places(
    rows: NDArray[np.int64], token_ids: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and column of each listed token: ``token_ids[i]`` are those of ``rows[i]``."""
    return np.repeat(rows, [len(ids) for ids in token_ids]), np.concatenate(token_ids)
