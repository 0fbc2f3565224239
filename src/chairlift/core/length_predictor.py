"""How long will the answer be? Guessed from how long the answers to the same tenant were.

Knows nothing of requests' content; it is told lengths of answers that came to their own end.
"""

from bisect import bisect_right, insort
from collections import OrderedDict, deque


class _Lengths:
    """The last few lengths, sorted and in order of arrival."""

    __slots__ = ("_latest", "_size", "_sorted")

    def __init__(self, size: int) -> None:
        self._size = size
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        if len(self._latest) == self._size:
            oldest = self._latest.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._latest.append(length)
        insort(self._sorted, length)

    def median_above(self, num_tokens: int, min_samples: int) -> int | None:
        """Return the median of the lengths above ``num_tokens``, or ``None`` if there are too few of them."""
        start = bisect_right(self._sorted, num_tokens)
        count = len(self._sorted) - start
        return self._sorted[start + count // 2] if count >= min_samples else None


class LengthPredictor:
    """Median of the tenant's last answers; of everybody's if the tenant is new; the request's own limit if all is new.

    A request that has already got so many tokens is compared with the answers that were longer than that.
    What is remembered is bounded: the last lengths of the tenants that ended a request last.
    """

    NUM_LENGTHS = 128
    NUM_GLOBAL_LENGTHS = 1024
    NUM_TENANTS = 1024
    MIN_SAMPLES = 8

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Lengths] = OrderedDict()
        self._all = _Lengths(self.NUM_GLOBAL_LENGTHS)

    def observe(self, tenant: str, num_output_tokens: int) -> None:
        """An answer came to its end, by a stop or by its limit; not by an abort, which says nothing of its length."""
        lengths = self._tenants.get(tenant)
        if lengths is None:
            lengths = self._tenants[tenant] = _Lengths(self.NUM_LENGTHS)
            if len(self._tenants) > self.NUM_TENANTS:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
        lengths.add(num_output_tokens)
        self._all.add(num_output_tokens)

    def predict_remaining(self, tenant: str, num_output_tokens: int, max_tokens: int) -> int:
        """Return how many output tokens are still to come, at least 1 unless the limit is reached."""
        left = max_tokens - num_output_tokens
        for lengths in (self._tenants.get(tenant), self._all):
            if lengths is not None:
                length = lengths.median_above(num_output_tokens, self.MIN_SAMPLES)
                if length is not None:
                    return min(length - num_output_tokens, left)
        return left
