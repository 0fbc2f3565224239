"""How many requests of one key, or of one address where none is needed, generate at a time.

Knows nothing of what they generate.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from starlette.requests import Request

from chairlift.errors import TooManyRequestsError
from chairlift.server.access import Caller

_Who = int | str


class ConcurrencyCap:
    """Counts requests, and refuses those beyond the cap.

    Args:
        max_requests: at a time and for each; ``None`` for no cap.
    """

    def __init__(self, max_requests: int | None) -> None:
        self._max_requests = max_requests
        self._numbers: Counter[_Who] = Counter()

    @property
    def num_requests(self) -> int:
        """Requests of everybody."""
        return self._numbers.total()

    @contextmanager
    def counted(self, request: Request, caller: Caller) -> Generator[None, None, None]:
        """Count a request for as long as this is open.

        Raises:
            TooManyRequestsError: as many as may be are open.
        """
        address = "" if request.client is None else request.client.host
        who: _Who = address if caller.key_number is None else caller.key_number
        if self._max_requests is not None and self._numbers[who] >= self._max_requests:
            raise TooManyRequestsError(
                f"{self._numbers[who]} requests of yours are being answered, and --max-concurrent-requests is "
                f"{self._max_requests}; wait for one of them to end"
            )
        self._numbers[who] += 1
        try:
            yield
        finally:
            self._numbers[who] -= 1
            if not self._numbers[who]:
                del self._numbers[who]
