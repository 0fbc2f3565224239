"""How a task that always has something to do shares the event loop with all others. Knows nothing of what they do."""

import asyncio
from collections.abc import Callable

SHORTEST_TURN_S = 0.002
LONGEST_TURN_S = 0.025


class Turns:
    """Gives one task as long as all others together had just before, within bounds.

    With a fixed turn it would have to wait the longer, the more the others do: its part of the time would go to nothing
    just when there is most of everything.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end_s = clock()

    async def pause_if_over(self) -> None:
        """Let the others run if this task's turn is over."""
        pauses_s = self._clock()
        if pauses_s < self._end_s:
            return
        await asyncio.sleep(0)
        now_s = self._clock()
        self._end_s = now_s + min(max(now_s - pauses_s, SHORTEST_TURN_S), LONGEST_TURN_S)
