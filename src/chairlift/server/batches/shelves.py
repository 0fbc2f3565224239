"""What each tenant keeps here, and how much that may be. Knows nothing of disks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from chairlift.config.sections import BatchSettings
from chairlift.errors import InvalidRequestError, TooManyRequestsError
from chairlift.server.batches.objects import ENDED, StoredBatch, StoredFile

MAX_ENDED_BATCHES = 1000
"""Batches that have ended of which a tenant is told; the oldest beyond that are forgotten, their files are not."""


class StorageFullError(InvalidRequestError):
    """A tenant keeps as much as it may; sending it again helps only once something was deleted."""


@dataclass(slots=True)
class Shelf:
    """One tenant's files and batches.

    ``num_bytes`` is what they take, results and uploads that are not files yet among them.
    """

    files: dict[str, StoredFile] = field(default_factory=dict[str, StoredFile])
    open_batches: dict[str, StoredBatch] = field(default_factory=dict[str, StoredBatch])
    ended_batches: dict[str, StoredBatch] = field(default_factory=dict[str, StoredBatch])
    num_bytes: int = 0

    def find_batch(self, batch_id: str) -> StoredBatch | None:
        """A batch of this tenant."""
        return self.open_batches.get(batch_id) or self.ended_batches.get(batch_id)

    def put_batch(self, stored: StoredBatch) -> Iterable[StoredBatch]:
        """Keep a batch as it is now; what is returned is forgotten for it."""
        batch_id = stored.batch.id
        if stored.batch.status not in ENDED:
            self.open_batches[batch_id] = stored
            return ()
        self.open_batches.pop(batch_id, None)
        self.ended_batches[batch_id] = stored
        num_over = max(len(self.ended_batches) - MAX_ENDED_BATCHES, 0)
        return [self.ended_batches.pop(oldest) for oldest in list(self.ended_batches)[:num_over]]

    def reader_of(self, file_id: str) -> StoredBatch | None:
        """A batch that still reads a file; ``None`` if nobody does."""
        return next((stored for stored in self.open_batches.values() if stored.batch.input_file_id == file_id), None)


class StorageCaps:
    """How much of everything one tenant may keep.

    Args:
        settings: have the numbers.
    """

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings

    def check_files(self, shelf: Shelf) -> None:
        """Whether there is room for another file.

        Raises:
            StorageFullError: there is none.
        """
        most = self._settings.max_batch_files
        if len(shelf.files) >= most:
            raise StorageFullError(
                f"{len(shelf.files)} files of yours are kept, and --max-batch-files is {most}; delete some of them"
            )

    def check_bytes(self, shelf: Shelf, num_bytes: int = 1) -> None:
        """Whether there is room for so many more bytes.

        Raises:
            StorageFullError: there is none.
        """
        most = self._settings.max_batch_storage_bytes
        if shelf.num_bytes + num_bytes > most:
            raise StorageFullError(
                f"your files and results take {shelf.num_bytes} bytes, and with at least {num_bytes} more they exceed "
                f"--max-batch-storage-bytes {most}; delete some of your files"
            )

    def check_batch(self, shelf: Shelf) -> None:
        """Whether there is room for another batch, and for its results.

        Raises:
            TooManyRequestsError: as many as may be have not ended.
            StorageFullError: its results could not be kept.
        """
        num_open, most = len(shelf.open_batches), self._settings.max_open_batches
        if num_open >= most:
            raise TooManyRequestsError(
                f"{num_open} batches of yours have not ended, and --max-open-batches is {most}; wait for one of them, "
                "or cancel it"
            )
        self.check_files(shelf)
        self.check_bytes(shelf)
