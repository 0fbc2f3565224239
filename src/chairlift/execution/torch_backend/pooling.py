"""Vectors of prompts from the hidden states of their rows: that of the last row, or the mean over all of them.

Knows nothing of plans or models. A mean is a sum that grows with each chunk of the prompt; a request that comes back
after a preemption begins anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from chairlift.core.sampling_params import Pooling


@dataclass(frozen=True, slots=True)
class PooledRows:
    """What a step computes for a request that is pooled."""

    request_id: int
    pooling: Pooling
    rows: range
    """Rows of the step whose hidden states are read: its last one, or all of its chunk's."""
    num_prompt_tokens: int
    is_first: bool
    """Whether the prompt begins with this chunk."""
    is_last: bool
    """Whether it ends with it, so that the vector is known."""


class RunningPools:
    """The sums of the requests whose mean is not known yet."""

    def __init__(self) -> None:
        self._sums: dict[int, torch.Tensor] = {}  # float64 [E] each

    def forget(self, request_ids: Iterable[int]) -> None:
        """These requests ended or gave way; unknown ids are fine."""
        for request_id in request_ids:
            self._sums.pop(request_id, None)

    def clear(self) -> None:
        """Forget every request."""
        self._sums.clear()

    def take(self, hidden: torch.Tensor, pooled: Sequence[PooledRows]) -> dict[int, bytes]:
        """Take in a step's rows, in the order of ``pooled``, and return the vectors that are ready, by request id.

        A vector that is not finite is left out, and so is a mean whose first rows were computed elsewhere.

        Args:
            hidden: ``[rows of all, E]`` after the model's last norm.
            pooled: whose they are.
        """
        found: dict[int, bytes] = {}
        start = 0
        for one in pooled:
            rows = hidden[start : start + len(one.rows)]  # [rows, E]
            start += len(one.rows)
            vector = rows[-1].float() if one.pooling == "last" else self._mean(one, rows)  # [E]
            if one.is_last and vector is not None and bool(torch.isfinite(vector).all()):
                found[one.request_id] = vector.cpu().numpy().astype("<f4").tobytes()
        return found

    def _mean(self, one: PooledRows, rows: torch.Tensor) -> torch.Tensor | None:
        """Add the chunk's rows; ``None`` if what came before them is not known here."""
        total = rows.double().sum(0)  # [E]
        if not one.is_first:
            before = self._sums.pop(one.request_id, None)
            if before is None:
                return None
            total += before
        if not one.is_last:
            self._sums[one.request_id] = total
        return (total / one.num_prompt_tokens).float()
