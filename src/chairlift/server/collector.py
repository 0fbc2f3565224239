"""When the process looks for garbage among all of its objects: while few are alive, if that comes soon.

Knows nothing of what the objects are. Most garbage is freed at once, or found among young objects within a
millisecond. A full collection holds the interpreter's lock for as long as it takes to walk through all objects: 10 to
40 ms while one request of the largest size is alive, 200 ms with eight of them, and 1 ms with none. By itself Python
makes them when requests have brought many objects, which is the worst time of all.
"""

import asyncio
import gc
import sys
from collections.abc import Callable

LOOK_EVERY_S = 0.25
FEW_BLOCKS = 20_000
"""Blocks of memory beyond those of the idle process that may be in use at once; a collection takes 2 ms then."""
MORE_BLOCKS_PER_S = 10_000
"""So many more may be, for each second that a collection has been due."""
MOST_OVERDUE_S = 60.0
"""After so long a collection is made whatever is alive."""

_NUM_YOUNG_COLLECTIONS = 10
"""Collections of young objects after which Python would make a full one."""
_NEVER = 1_000_000_000


class FullCollections:
    """Makes full collections, instead of Python; whatever is alive when this is made is taken for permanent.

    Args:
        count_blocks: how many blocks of memory are in use.
    """

    def __init__(self, count_blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._count_blocks = count_blocks
        gc.collect()
        gc.freeze()  # no collection walks through these again
        self._num_permanent = count_blocks()
        self._due_s: float | None = None

    async def run(self) -> None:
        """Make them until cancelled; from then on Python does as before."""
        thresholds = gc.get_threshold()
        gc.set_threshold(*thresholds[:2], _NEVER)
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                self.look(clock())
        finally:
            gc.set_threshold(*thresholds)

    def look(self, now_s: float) -> None:
        """Make one, if there is reason to and it is quick, or has been due for long."""
        if gc.get_count()[2] < _NUM_YOUNG_COLLECTIONS:
            self._due_s = None
            return
        due_s = self._due_s = now_s if self._due_s is None else self._due_s
        overdue_s = now_s - due_s
        num_more = self._count_blocks() - self._num_permanent
        if num_more <= FEW_BLOCKS + MORE_BLOCKS_PER_S * overdue_s or overdue_s >= MOST_OVERDUE_S:
            gc.collect()
            self._due_s = None
