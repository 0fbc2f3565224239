"""Time as a benchmark sees it: a clock that never goes back, and waiting for a moment on it.

Knows nothing of what is timed. Tests put a clock of their own in its place.
"""

import asyncio
import time
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """A clock in nanoseconds from an arbitrary start, and the CPU time of this process."""

    def now_ns(self) -> int:
        """Return the time."""
        ...

    def cpu_ns(self) -> int:
        """Return the CPU time that the process has used, all threads together."""
        ...

    async def sleep_until(self, at_ns: int) -> None:
        """Wait for a moment; return at once if it has passed, and never before it."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ns(self) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def cpu_ns(self) -> int:
        """Return the CPU time that the process has used."""
        return time.process_time_ns()

    async def sleep_until(self, at_ns: int) -> None:
        """Wait for a moment. Event loops round timers, some of them down: hence the loop."""
        while (left_ns := at_ns - self.now_ns()) > 0:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(left_ns / NS_PER_S)
