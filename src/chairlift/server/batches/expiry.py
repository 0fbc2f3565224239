"""Deletes files when their time is over, but none that a batch still reads. Knows nothing of HTTP."""

from collections.abc import Callable

from chairlift.server.batches.rests import wait_at_most
from chairlift.server.batches.store import BatchStore, DiskError, now_s

RETRY_S = 10.0
"""After so long it is tried again with a file that is due but in use, or that the disk does not let go of."""
MAX_WAIT_S = 3600.0
"""The clock is looked at again after so long: somebody may have set it."""


class FileExpiry:
    """Runs in the server's event loop until it is cancelled.

    Args:
        store: where files are.
        clock: Unix time in seconds.
    """

    def __init__(self, store: BatchStore, clock: Callable[[], int] = now_s) -> None:
        self._store = store
        self._now_s = clock

    async def run(self) -> None:
        """Work for ever."""
        while True:
            self._store.expiring_changed.clear()
            await self.delete_due()
            await wait_at_most(self._store.expiring_changed, self._left_s())

    async def delete_due(self) -> None:
        """Delete every file that is due and can be deleted now."""
        for stored in list(self._store.find_expiring_files()):
            shelf, file = self._store.shelf(stored.owner), stored.file
            is_due = file.expires_at is not None and file.expires_at <= self._now_s()
            if not is_due or file.id not in shelf.files or shelf.reader_of(file.id) is not None:
                continue
            try:
                await self._store.delete_file(stored)
            except DiskError:
                continue  # it is in the log, and the file is still there

    def _left_s(self) -> float | None:
        """Seconds until there may be something to delete; ``None`` if no file expires."""
        ends = [stored.file.expires_at for stored in self._store.find_expiring_files()]
        first = min((end for end in ends if end is not None), default=None)
        if first is None:
            return None
        left_s = first - self._now_s()
        return min(left_s, MAX_WAIT_S) if left_s > 0 else RETRY_S
