"""Log-probabilities of tokens by the model's own logits, before anything changed these.

Knows nothing of requests. Each row is worked on alone, so its numbers do not depend on the other rows.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.core.step_plan import TokenLogprobs

_BLOCK = 64


def describe_tokens(
    logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int64]
) -> list[TokenLogprobs]:
    """Return how likely the model found each row's token, and so many of the most likely ones beside it.

    Args:
        logits: float32 [R, V] on the CPU.
        token_ids: [R].
        num_top: [R], alternatives wanted for each row; 0 is none but the token itself.
    """
    scratch = np.empty(logits.shape[1], np.float32)
    with np.errstate(invalid="ignore"):  # rows that are no numbers fail, and nobody reads what is said of them
        wanted = zip(logits.numpy(), token_ids.tolist(), num_top.tolist(), strict=True)
        return [_describe(row, token_id, count, scratch) for row, token_id, count in wanted]


def _describe(row: NDArray[np.float32], token_id: int, num_top: int, scratch: NDArray[np.float32]) -> TokenLogprobs:
    best = row.max()
    np.subtract(row, best, out=scratch)
    np.exp(scratch, out=scratch)
    total = float(best) + math.log(scratch.sum(dtype=np.float64))
    own = row[token_id]
    rank = int(np.count_nonzero(row > own)) + 1
    top_ids = _most_likely(row, min(num_top, len(row)))
    # In float64 like the token's own, so that a token among them has the same number in both places.
    top = tuple(zip(top_ids.tolist(), (row[top_ids].astype(np.float64) - total).tolist(), strict=True))
    return TokenLogprobs(float(own) - total, rank, top)


def _most_likely(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the ids of the highest numbers, the lowest id first where two are equal.

    They lie in the blocks whose highest numbers are the highest ones::

        row   | 64 numbers | 64 numbers | ... | rest |
    """
    if not count:
        return np.empty(0, np.int64)
    num_even = len(row) // _BLOCK * _BLOCK
    peaks = np.append(row[:num_even].reshape(-1, _BLOCK).max(axis=1), row[num_even:].max(initial=-np.inf))
    blocks = np.sort(np.argsort(-peaks, kind="stable")[:count])
    ids = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    ids = ids[ids < len(row)]
    return ids[np.argsort(-row[ids], kind="stable")[:count]]
