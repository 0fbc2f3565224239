"""A file of which the bytes come, and the room that they take meanwhile. Knows nothing of requests."""

from typing import BinaryIO

from chairlift.server.batches.objects import FileObject
from chairlift.server.batches.shelves import Shelf, StorageCaps


class Incoming:
    """A file of which the bytes come. Its owner sets ``filename`` to keep it, and then finds it in ``file``; with
    ``expires_after_s`` it is kept for so long, or for as long as a batch reads it.
    """

    def __init__(self, content: BinaryIO, shelf: Shelf, caps: StorageCaps) -> None:
        self.content = content
        self.num_bytes = 0
        self.filename: str | None = None
        self.expires_after_s: int | None = None
        self.file: FileObject | None = None
        self._shelf = shelf
        self._caps = caps

    def grew(self, num_bytes: int) -> None:
        """Note that it has so many bytes more.

        Raises:
            StorageFullError: there is no room for them.
        """
        self._caps.check_bytes(self._shelf, num_bytes)
        self._shelf.num_bytes += num_bytes
        self.num_bytes += num_bytes
