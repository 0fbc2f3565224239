"""Which batches are left alone for a while, as the disk kept them from going on. Knows nothing of what a batch is."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

FIRST_PAUSE_S = 30.0
MAX_PAUSE_S = 300.0


class _Rest(NamedTuple):
    due_s: float
    pause_s: float


class Rests:
    """Each pause is twice as long as the one before, up to a limit, until the batch goes on. Lives in an event loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Rest] = {}

    def begin(self, batch_id: str) -> float:
        """Let a batch rest, and return for how many seconds."""
        before = self._by_id.get(batch_id)
        pause_s = FIRST_PAUSE_S if before is None else min(2 * before.pause_s, MAX_PAUSE_S)
        self._by_id[batch_id] = _Rest(asyncio.get_running_loop().time() + pause_s, pause_s)
        return pause_s

    def end(self, batch_id: str) -> None:
        """Forget that a batch rested, if it did."""
        self._by_id.pop(batch_id, None)

    def left_s(self, batch_id: str) -> float:
        """Seconds for which a batch is still to be left alone."""
        rest = self._by_id.get(batch_id)
        return 0 if rest is None else max(rest.due_s - asyncio.get_running_loop().time(), 0)

    def now(self) -> dict[str, float]:
        """The batches that rest, and for how many seconds more."""
        left_s = {batch_id: self.left_s(batch_id) for batch_id in self._by_id}
        return {batch_id: seconds for batch_id, seconds in left_s.items() if seconds > 0}


async def wait_at_most(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait for an event, but no longer than that. (Python 3.11's ``wait_for`` may lose a cancellation meanwhile.)"""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
