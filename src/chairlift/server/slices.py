"""Doing much in several turns of the event loop, so that others have theirs in between.

Knows nothing of what is done.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

NUM_PER_TURN = 64
"""Requests of the engine that are begun or ended in one turn, a few milliseconds' work."""

_T = TypeVar("_T")


async def for_each(items: Sequence[_T], act: Callable[[_T], object]) -> None:
    """Call ``act`` with every item, whatever happens: if this is cancelled, with all that are left at once."""
    num_done = 0
    try:
        for item in items:
            if num_done and num_done % NUM_PER_TURN == 0:
                await asyncio.sleep(0)
            num_done += 1
            act(item)
    finally:
        for item in items[num_done:]:
            act(item)


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that have not ended, and wait until they have; if this is cancelled, cancel all at once."""
    unfinished = [task for task in tasks if not task.done()]
    num_cancelled = 0
    try:
        while num_cancelled < len(unfinished):
            some = unfinished[num_cancelled : num_cancelled + NUM_PER_TURN]
            num_cancelled += len(some)
            for task in some:
                task.cancel()
            await asyncio.gather(*some, return_exceptions=True)
    finally:
        for task in unfinished[num_cancelled:]:
            task.cancel()
