"""What changes logits by the tokens that came before: repetition, presence and frequency penalties.

Knows nothing of probabilities. Works on tokens as they stand in the request table, so there is no state to keep.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.execution.torch_backend.request_table import RequestTable


def apply_penalties(
    logits: torch.Tensor, table: RequestTable, table_rows: NDArray[np.int64], num_tokens: NDArray[np.int64]
) -> None:
    """Change the rows of ``logits [S, V]`` whose request has penalties, in place.

    Args:
        logits: float32; row ``i`` belongs to ``table_rows[i]``.
        table: tokens and parameters of all requests.
        table_rows: [S].
        num_tokens: [S], how many tokens of each request count (prompt and output).
    """
    columns = table.sampling[table_rows]
    repeats = columns["repetition_penalty"] != 1.0
    if repeats.any():
        _penalize_repetition(logits, np.flatnonzero(repeats), table, table_rows, num_tokens)
    counts = (columns["presence_penalty"] != 0.0) | (columns["frequency_penalty"] != 0.0)
    if counts.any():
        _penalize_output(logits, np.flatnonzero(counts), table, table_rows, num_tokens)


def _penalize_repetition(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    table: RequestTable,
    table_rows: NDArray[np.int64],
    num_tokens: NDArray[np.int64],
) -> None:
    token_ids = _padded_tokens(table, table_rows[rows], np.zeros_like(rows), num_tokens[rows])  # [R, tokens]
    penalty = torch.from_numpy(table.sampling["repetition_penalty"][table_rows[rows]]).unsqueeze(1)  # [R, 1]
    places = (torch.from_numpy(rows).unsqueeze(1), token_ids)
    before = logits[places]  # [R, tokens]
    # A token that occurs twice is read twice before and written twice after: both times the same number.
    logits[places] = torch.where(before > 0, before / penalty, before * penalty)


def _penalize_output(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    table: RequestTable,
    table_rows: NDArray[np.int64],
    num_tokens: NDArray[np.int64],
) -> None:
    columns = table.sampling[table_rows[rows]]
    started = num_tokens[rows] > columns["num_prompt_tokens"]
    rows, columns = rows[started], columns[started]
    if not len(rows):
        return
    token_ids = _padded_tokens(table, table_rows[rows], columns["num_prompt_tokens"], num_tokens[rows])
    num_outputs = torch.from_numpy(num_tokens[rows] - columns["num_prompt_tokens"]).unsqueeze(1)  # [R, 1]
    is_output = torch.arange(token_ids.shape[1]) < num_outputs  # [R, tokens]
    counts = torch.zeros(len(rows), logits.shape[1]).scatter_add_(1, token_ids, is_output.float())  # [R, V]
    presence = torch.from_numpy(np.ascontiguousarray(columns["presence_penalty"])).unsqueeze(1)
    frequency = torch.from_numpy(np.ascontiguousarray(columns["frequency_penalty"])).unsqueeze(1)
    # Padding repeats the request's first output token, so every listed token is an output, and one that is listed
    # twice is changed from the same number to the same number.
    places = (torch.from_numpy(rows).unsqueeze(1), token_ids)
    logits[places] = logits[places] - counts.gather(1, token_ids) * frequency - presence


def _padded_tokens(
    table: RequestTable, table_rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> torch.Tensor:
    """Return tokens ``[start, end)`` of each request, padded with its own first one: int64 [R, longest]."""
    offsets = np.arange(int((ends - starts).max()))
    positions = np.where(offsets < (ends - starts)[:, None], starts[:, None] + offsets, starts[:, None])
    return torch.from_numpy(table.token_ids[table_rows[:, None], positions].astype(np.int64))
