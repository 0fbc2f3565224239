"""Threads for work that would keep the event loop from others. Knows nothing of what the work is.

Two threads, because each one more may hold Python's lock for a moment when the event loop wants it. What waits for a
thread is bounded: whoever sends much long text at once is refused, and short requests never come here.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from chairlift.errors import OverloadedError

NUM_WORKERS = 2
MAX_PENDING = 256
"""Pieces of work that wait for a thread or are in one at most."""

_T = TypeVar("_T")


class Workers:
    """The threads, and how much waits for them. Belongs to one event loop."""

    def __init__(self, num_workers: int = NUM_WORKERS, max_pending: int = MAX_PENDING) -> None:
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="chairlift-worker")
        self._max_pending = max_pending
        self._num_pending = 0

    async def run(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Run ``work`` in a thread; cancelled before its turn, it is never run.

        Raises:
            OverloadedError: too much waits already.
        """
        if self._num_pending >= self._max_pending:
            raise OverloadedError(f"{self._num_pending} long texts are being worked on already; try again")
        self._num_pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*arguments))
        try:
            return await future
        finally:
            self._num_pending -= 1


@cache
def _workers() -> Workers:
    return Workers()


async def in_worker(work: Callable[..., _T], *arguments: object) -> _T:
    """Run ``work`` in one of the process's worker threads.

    Raises:
        OverloadedError: too much waits already.
    """
    return await _workers().run(work, *arguments)
