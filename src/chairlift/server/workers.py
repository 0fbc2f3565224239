"""Threads for work that would keep the event loop from others. Knows nothing of what the work is.

Few threads, because each one more may hold Python's lock for a moment when the event loop wants it; and one alone for
parsers, which hold it from the first byte of a text to the last. What waits for a thread is bounded: whoever sends much
long text at once is refused, and short requests never come here. Answers that were promised are not refused, and go
before what is not accepted yet; there is at most one for each accepted request.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from chairlift.errors import OverloadedError

NUM_WORKERS = 2
MAX_PENDING = 256
"""Pieces of work that wait for a thread or are in one at most, answers not counted."""

_T = TypeVar("_T")


class Workers:
    """Some threads, and what waits for them. Belongs to one event loop."""

    def __init__(self, num_workers: int = NUM_WORKERS, max_pending: int = MAX_PENDING) -> None:
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="chairlift-worker")
        self._max_pending = max_pending
        self._num_pending = 0
        self._num_free = num_workers
        self._answers: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Run ``work`` in a thread; cancelled before its turn, it is never run.

        Raises:
            OverloadedError: too much waits already.
        """
        if self._num_pending >= self._max_pending:
            raise OverloadedError(f"{self._num_pending} long texts are being worked on already; try again")
        self._num_pending += 1
        try:
            return await self._run(self._others, work, *arguments)
        finally:
            self._num_pending -= 1

    async def run_answer(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Run ``work``, which writes a part of an answer, as soon as a thread is free, however much waits."""
        return await self._run(self._answers, work, *arguments)

    async def _run(self, queue: deque[asyncio.Future[None]], work: Callable[..., _T], *arguments: object) -> _T:
        await self._thread(queue)
        # A cancelled piece gives its place away before its thread has ended it; the next one waits in the pool then.
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*arguments))
        finally:
            self._pass_on()

    async def _thread(self, queue: deque[asyncio.Future[None]]) -> None:
        """Wait for a free thread and take it."""
        if self._num_free:
            self._num_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same time
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a thread that has become free to who waits for it."""
        for queue in (self._answers, self._others):
            while queue:
                turn = queue.popleft()
                if not turn.done():  # or it was cancelled
                    turn.set_result(None)
                    return
        self._num_free += 1


@cache
def _workers() -> Workers:
    return Workers()


async def in_worker(work: Callable[..., _T], *arguments: object) -> _T:
    """Run ``work`` in one of the process's worker threads.

    Raises:
        OverloadedError: too much waits already.
    """
    return await _workers().run(work, *arguments)


@cache
def _parser() -> Workers:
    return Workers(1)


async def in_parser(work: Callable[..., _T], *arguments: object) -> _T:
    """Run ``work``, which parses a text, alone: the event loop never waits for two parsers, one after the other.

    Raises:
        OverloadedError: too much waits already.
    """
    return await _parser().run(work, *arguments)


async def answer_in_worker(work: Callable[..., _T], *arguments: object) -> _T:
    """Run ``work``, which writes a part of an answer to an accepted request, in one of the threads."""
    return await _workers().run_answer(work, *arguments)
