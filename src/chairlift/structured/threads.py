"""Threads whose work is given up if it takes too long: the grammar library cannot be interrupted.

Knows nothing of grammars. Time is what a thread had of a processor, so that a busy machine is not mistaken for long
work. What was given up goes on until it is done, in a thread that nobody waits for any more.
"""

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, get_ident, get_native_id

logger = logging.getLogger(__name__)

_NS_PER_S = 1e9
_LOOKS_PER_LIMIT = 4
_LOWEST_PRIORITY = 19
_FEW_PIECES = 4
"""Done where they are asked for, if they cannot take long: to wake a thread takes longer."""

Clock = Callable[[], int]


class Task:
    """A list of pieces of work, done one after the other in one thread.

    Args:
        pieces: what is to be done; a piece that raises ends the task.
        limit_ns: how long one piece may take; ``None`` for pieces that never take long.
    """

    def __init__(self, pieces: Sequence[Callable[[], None]], limit_ns: int | None) -> None:
        self.pieces = pieces
        self.limit_ns = limit_ns
        self.is_given_up = False
        self._clock: Clock | None = None
        self._thread_id = 0
        self._started_ns = 0

    def run(self, clock: Clock) -> None:
        """Do it, in the thread that calls, whose clock this is."""
        if self.limit_ns is None:
            for piece in self.pieces:
                piece()
            return
        self._thread_id = get_native_id()
        for piece in self.pieces:
            self._started_ns = clock()
            self._clock = clock
            try:
                piece()
            finally:
                self._clock = None
            if self.is_given_up:
                return

    @property
    def is_overdue(self) -> bool:
        """Whether the piece that is being done takes too long."""
        clock = self._clock
        if self.limit_ns is None or clock is None:
            return False
        try:
            return clock() - self._started_ns > self.limit_ns
        except OSError:  # it has just ended, and its thread with it
            return False

    def give_up(self) -> None:
        """Nobody waits for it any more: it begins nothing new, and its thread works when nobody else does."""
        self.is_given_up = True
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self._thread_id, _LOWEST_PRIORITY)


class TaskThreads:
    """Does tasks side by side.

    Args:
        num_threads: so many work for somebody at most.
        name: what they are called.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def run(self, tasks: Sequence[Task]) -> None:
        """Return when each task is done or was given up, because one piece of it took longer than its limit."""
        limits_ns = [task.limit_ns for task in tasks if task.limit_ns is not None]
        queue, open_tasks = deque(tasks), _Open(len(tasks))
        if not limits_ns and sum(len(task.pieces) for task in tasks) <= _FEW_PIECES:
            _work(queue, open_tasks)
            return
        for _ in range(min(len(tasks), self._num_threads)):
            self._start(queue, open_tasks)
        look_s = min(limits_ns) / _LOOKS_PER_LIMIT / _NS_PER_S if limits_ns else None
        while not open_tasks.wait(look_s):
            for task in tasks:
                if task.is_overdue and open_tasks.give_up(task):
                    # Its thread is busy for nobody: another one takes its place.
                    self.close()
                    self._start(queue, open_tasks)

    def close(self) -> None:
        """Let the threads end when they have done what they do."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    def _start(self, queue: deque[Task], open_tasks: "_Open") -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix=self._name)
        self._pool.submit(_work, queue, open_tasks)


class _Open:
    """How many tasks somebody waits for."""

    def __init__(self, num_tasks: int) -> None:
        self._changed = Condition()
        self._num_left = num_tasks

    def note_end(self, task: Task) -> None:
        with self._changed:
            if not task.is_given_up:
                self._take_one()

    def give_up(self, task: Task) -> bool:
        """Whether that was in time, and not after its end."""
        with self._changed:
            if not task.is_overdue:
                return False
            task.give_up()
            self._take_one()
            return True

    def wait(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._num_left == 0, timeout_s)

    def _take_one(self) -> None:
        self._num_left -= 1
        if self._num_left == 0:
            self._changed.notify_all()


def _work(queue: deque[Task], open_tasks: _Open) -> None:
    clock = _clock_of_this_thread()
    while True:
        try:
            task = queue.popleft()
        except IndexError:
            return
        try:
            task.run(clock)
        except Exception:
            logger.exception("a piece of work failed; the rest of its task is not done")
        finally:
            open_tasks.note_end(task)


def _clock_of_this_thread() -> Clock:
    """A clock that any thread may read, and that goes only while this thread works."""
    find = getattr(time, "pthread_getcpuclockid", None)
    if find is None:
        return time.monotonic_ns  # noqa: TID251 - no such clock on this system: all time that passes counts
    clock_id = find(get_ident())
    return lambda: time.clock_gettime_ns(clock_id)
