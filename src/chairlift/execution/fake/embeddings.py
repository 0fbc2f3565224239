"""The toy model's vectors: hashes of what it reads.

Knows nothing of pages; the executor hands it tokens as read through them.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from chairlift.core.step_plan import StepPlan

EMBEDDING_SIZE = 16
"""Numbers of a vector."""


def hash_vector(token_ids: Sequence[int]) -> list[float]:
    """Return a vector that depends on every token and their order, each number of it in [-1, 1)."""
    digest = blake2b(digest_size=4 * EMBEDDING_SIZE)
    for token_id in token_ids:
        digest.update(token_id.to_bytes(8, "little", signed=True))
    return [number / 2**31 for number in struct.unpack(f"<{EMBEDDING_SIZE}i", digest.digest())]


def pack(vector: Sequence[float]) -> bytes:
    """Return a vector as executors give it."""
    return struct.pack(f"<{len(vector)}f", *vector)


class RunningSums:
    """What the means of running requests are made of: every row adds the vector of its position and token."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[list[float], int]] = {}

    def apply(self, plan: StepPlan) -> None:
        """Forget who ended or gave way; of who is new, or comes back, nothing is known."""
        for request_id in plan.ended:
            self._sums.pop(request_id, None)
        for new in plan.new:
            if new.sampling.pooling == "mean":
                self.begin(new.request_id)

    def begin(self, request_id: int) -> None:
        """Start the sum of a request."""
        self._sums[request_id] = ([0.0] * EMBEDDING_SIZE, 0)

    def add(self, request_id: int, position: int, token_id: int) -> None:
        """A row was computed."""
        total, count = self._sums[request_id]
        added = [a + b for a, b in zip(total, hash_vector((position, token_id)), strict=True)]
        self._sums[request_id] = (added, count + 1)

    def mean(self, request_id: int) -> list[float]:
        """The mean over the rows that were added."""
        total, count = self._sums[request_id]
        return [number / count for number in total]


def reference_embedding(token_ids: Sequence[int], pooling: str) -> bytes:
    """Return what the model makes of a prompt alone, without pages or chunks: the truth to compare with."""
    if pooling == "last":
        return pack(hash_vector(token_ids))
    sums = RunningSums()
    sums.begin(0)
    for position, token_id in enumerate(token_ids):
        sums.add(0, position, token_id)
    return pack(sums.mean(0))
