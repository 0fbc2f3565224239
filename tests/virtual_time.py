"""An event loop whose time jumps to the next timer, and a clock on it: waits cost nothing and are exact.

Knows nothing of pytest, and of sockets: nothing from outside may be waited for in such a loop.
"""

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

NS_PER_S = 1_000_000_000

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps when nothing is ready. Blocking work is ``advance``: time passes, and nobody else runs."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 0.0

    def time(self) -> float:
        return self._virtual_s

    def advance(self, seconds: float) -> None:
        self._virtual_s += seconds

    def _run_once(self) -> None:
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self._virtual_s = max(self._virtual_s, timers[0]._when)
        super()._run_once()  # type: ignore[misc]


class VirtualClock:
    """A :class:`chairlift.benchmark.clock.Clock` on the running loop; CPU time is what was advanced."""

    def __init__(self) -> None:
        self.used_cpu_ns = 0

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * NS_PER_S)

    def cpu_ns(self) -> int:
        return self.used_cpu_ns

    async def sleep_until(self, at_ns: int) -> None:
        left_ns = at_ns - self.now_ns()
        if left_ns > 0:
            await asyncio.sleep(left_ns / NS_PER_S)

    def block(self, seconds: float) -> None:
        """Keep the loop busy."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.advance(seconds)
        self.used_cpu_ns += round(seconds * NS_PER_S)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time from 0 on."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
