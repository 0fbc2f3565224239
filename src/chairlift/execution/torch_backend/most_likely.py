"""The most likely token of each row. Knows nothing of requests, nor of how logits come about."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class MostLikely(NamedTuple):
    """Of each row: the first token whose logit is highest, and that logit: no number if any of them is none."""

    token_ids: NDArray[np.int64]  # [S]
    logits: NDArray[np.float32]  # [S]


def most_likely(logits: torch.Tensor) -> MostLikely:
    """Search float32 logits ``[S, V]`` on the CPU."""
    numbers = logits.numpy()
    # numpy's has vector instructions, torch's max along an axis has none, and takes ten times as long.
    token_ids = numbers.argmax(axis=-1)  # what is not a number comes first
    return MostLikely(token_ids, numbers[np.arange(len(token_ids)), token_ids])
