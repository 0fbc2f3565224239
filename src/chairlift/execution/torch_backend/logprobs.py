"""Log-probabilities of tokens by the model's own logits, before anything changed these.

Knows nothing of requests. Each row's numbers are made in an order that does not depend on the other rows.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.core.step_plan import TokenLogprobs
from chairlift.execution.torch_backend.torch_draw import block_ends


def describe_tokens(
    logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int64]
) -> list[TokenLogprobs]:
    """Return how likely the model found each row's token, and so many of the most likely ones beside it.

    Args:
        logits: float32 [R, V].
        token_ids: [R].
        num_top: [R], alternatives wanted for each row; 0 is none but the token itself.
    """
    own = logits.gather(1, torch.from_numpy(token_ids).unsqueeze(1))  # [R, 1]
    ranks = (logits > own).sum(dim=1) + 1  # [R]
    best = logits.max(dim=1, keepdim=True).values.double()  # [R, 1]
    weights = (logits - best.float()).exp_()  # [R, V]
    totals = best + block_ends(weights)[1][:, -1:].log()  # [R, 1], the logarithm of the sum of all exponentials
    logprobs = (own.double() - totals).squeeze(1).tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(token_ids)
    # Rows that want as many are looked at together: which of two equal tokens comes first must not depend on others.
    for count in np.unique(num_top[num_top > 0]).tolist():
        rows = np.flatnonzero(num_top == count)
        index = torch.from_numpy(rows)
        top = logits[index].topk(min(count, logits.shape[1]), dim=1)
        values = (top.values.double() - totals[index]).tolist()
        for row, ids, numbers in zip(rows.tolist(), top.indices.tolist(), values, strict=True):
            tops[row] = tuple(zip(ids, numbers, strict=True))
    return [TokenLogprobs(*described) for described in zip(logprobs, ranks.tolist(), tops, strict=True)]
