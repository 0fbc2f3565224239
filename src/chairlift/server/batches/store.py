"""Files and batches in a folder, which a restart finds again.

Knows nothing of HTTP. Names in the folder are ids made here; what a client sends is only looked up among them.

::

    FOLDER/files/file-....json, file-....data      what a file is, and its content
    FOLDER/batches/batch_....json                  what a batch is
    FOLDER/batches/batch_....out, batch_....err    its results so far, one line for each request
"""

import asyncio
import logging
import os
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from chairlift.config.sections import BatchSettings
from chairlift.errors import ChairliftError, ConfigurationError
from chairlift.server.batches.objects import ENDED, Batch, FileObject, StoredBatch, StoredFile
from chairlift.server.batches.shelves import Shelf, StorageCaps


class DiskError(ChairliftError):
    """The folder of ``--batch-dir`` does not take what it should keep."""

    http_status = 507


_HEX_ID = "[0-9a-f]" * 32

logger = logging.getLogger(__name__)

_Stored = TypeVar("_Stored", StoredFile, StoredBatch)
_T = TypeVar("_T")


class BatchStore:
    """Everything that is kept, in memory but for the contents of files. ``caps`` says how much one owner may keep.

    One thread does all that a disk may keep waiting, one thing after the other.

    Raises:
        ConfigurationError: the folder cannot be used.
    """

    def __init__(self, folder: Path, settings: BatchSettings | None = None) -> None:
        self.caps = StorageCaps(settings or BatchSettings())
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="chairlift-batches")
        self._writing: set[asyncio.Future[None]] = set()
        self._files_dir, self._batches_dir = folder / "files", folder / "batches"
        self._shelves: defaultdict[str, Shelf] = defaultdict(Shelf)
        try:
            for directory in (self._files_dir, self._batches_dir):
                directory.mkdir(parents=True, exist_ok=True)
            self._find_all()
        except OSError as error:
            raise ConfigurationError(f"--batch-dir {folder} cannot be used: {error.strerror}") from error

    def shelf(self, owner: str) -> Shelf:
        """What one owner keeps, and nobody else sees."""
        return self._shelves[owner]

    def find_next_batch(self) -> StoredBatch | None:
        """The oldest batch that has not ended."""
        oldest = (next(iter(shelf.open_batches.values()), None) for shelf in self._shelves.values())
        waiting = (stored for stored in oldest if stored is not None)
        return min(waiting, key=lambda stored: (stored.batch.created_at, stored.batch.id), default=None)

    def content_path(self, file: FileObject) -> Path:
        """Where the content of a file of ours is."""
        return self._files_dir / f"{file.id}.data"

    def new_file_id(self) -> str:
        """An id that nobody can guess."""
        return f"file-{secrets.token_hex(16)}"

    @asynccontextmanager
    async def incoming(self, owner: str) -> AsyncGenerator["Incoming"]:
        """A file that comes now; whatever is not kept by the end is gone.

        Raises:
            StorageFullError: there is no room for another file.
            DiskError: the disk does not take it.
        """
        path, shelf = self._files_dir / f"{secrets.token_hex(16)}.part", self._shelves[owner]
        content = await self._on_disk(_create, path)
        upload = Incoming(content, shelf, self.caps)
        try:
            yield upload
            self.caps.check_files(shelf)
            await self._on_disk(content.close)
            if upload.filename is not None:
                stored = await self._on_disk(self._keep, owner, self.new_file_id(), upload.filename, "batch", path)
                shelf.files[stored.file.id] = stored
                upload.file = stored.file
        except OSError as error:
            logger.exception("a file could not be kept")
            raise DiskError(f"the folder of --batch-dir does not take the file: {error.strerror}") from error
        finally:
            if upload.file is None:
                shelf.num_bytes -= upload.num_bytes
                await self._on_disk(_remove, content, path)

    async def publish(self, stored: StoredBatch, file_id: str, *, is_error: bool) -> None:
        """Make a file of results, unless that was done before a crash."""
        shelf = self._shelves[stored.owner]
        if file_id in shelf.files:
            return
        name = f"{stored.batch.id}_{'errors' if is_error else 'output'}.jsonl"
        content = self.results_path(stored.batch, is_error=is_error)
        was_moved = not content.exists()
        file = await self._on_disk(self._keep, stored.owner, file_id, name, "batch_output", content)
        shelf.files[file_id] = file
        if was_moved:
            shelf.num_bytes += file.file.bytes  # where it was before the crash it was not found, and not counted

    async def delete_file(self, stored: StoredFile) -> None:
        """Forget a file."""
        shelf = self._shelves[stored.owner]
        del shelf.files[stored.file.id]
        shelf.num_bytes -= stored.file.bytes
        content = self.content_path(stored.file)
        await self._on_disk(_unlink, content.with_suffix(".json"), content)

    async def save(self, stored: StoredBatch) -> None:
        """Write a batch as it is now."""
        forgotten = self._shelves[stored.owner].put_batch(stored)
        await self._on_disk(_write, self._batches_dir / f"{stored.batch.id}.json", msgspec.json.encode(stored))
        for old in forgotten:
            paths = [self._batches_dir / f"{old.batch.id}.{ending}" for ending in ("json", "out", "err")]
            await self._on_disk(_unlink, *paths)

    async def add_result(self, stored: StoredBatch, line: bytes, *, is_error: bool) -> None:
        """Write down one result and count it, also if whoever waits for that is cancelled."""
        counts, shelf = stored.batch.request_counts, self._shelves[stored.owner]

        def count(written: asyncio.Future[None]) -> None:
            self._writing.discard(written)
            if written.cancelled() or written.exception() is not None:
                return
            shelf.num_bytes += len(line) + 1
            if is_error:
                counts.failed += 1
            else:
                counts.completed += 1

        path = self.results_path(stored.batch, is_error=is_error)
        writing = asyncio.ensure_future(self._on_disk(append, path, line))
        self._writing.add(writing)
        writing.add_done_callback(count)
        await asyncio.shield(writing)

    async def settle(self) -> None:
        """Wait until all results are written down that are on their way."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def results_path(self, batch: Batch, *, is_error: bool) -> Path:
        """Where results are gathered."""
        return self._batches_dir / f"{batch.id}.{'err' if is_error else 'out'}"

    def _keep(self, owner: str, file_id: str, filename: str, purpose: str, content: Path) -> StoredFile:
        """Move a content to where files are; not there, it was moved before a crash. On the disk's thread."""
        kept = self._files_dir / f"{file_id}.data"
        if content.exists():
            content.replace(kept)
        num_bytes = kept.stat().st_size
        file = FileObject(id=file_id, bytes=num_bytes, created_at=now_s(), filename=filename, purpose=purpose)
        stored = StoredFile(owner, file)
        _write(self._files_dir / f"{file.id}.json", msgspec.json.encode(stored))
        return stored

    async def _on_disk(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Do something that a disk may keep waiting, after all that was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, partial(work, *arguments))

    def _find_all(self) -> None:
        files = sorted(_load(self._files_dir, StoredFile), key=lambda stored: stored.file.created_at)
        for stored in files:
            shelf = self._shelves[stored.owner]
            shelf.files[stored.file.id] = stored
            shelf.num_bytes += stored.file.bytes
        batches = sorted(_load(self._batches_dir, StoredBatch), key=lambda stored: stored.batch.created_at)
        for stored in batches:
            shelf = self._shelves[stored.owner]
            shelf.put_batch(stored)
            if stored.batch.status not in ENDED:
                results = (self.results_path(stored.batch, is_error=is_error) for is_error in (False, True))
                shelf.num_bytes += sum(path.stat().st_size for path in results if path.exists())
        self._clear()

    def _clear(self) -> None:
        """Remove what a crash left of files that were not kept yet."""
        shelves = self._shelves.values()
        batches = [stored.batch for shelf in shelves for stored in shelf.open_batches.values()]
        ids = {file_id for shelf in shelves for file_id in shelf.files}
        ids.update(file_id for batch in batches for file_id in (batch.output_file_id, batch.error_file_id) if file_id)
        for pattern in (f"{_HEX_ID}.part", f"file-{_HEX_ID}.tmp", f"file-{_HEX_ID}.data"):
            for path in self._files_dir.glob(pattern):
                if path.stem not in ids:
                    path.unlink()


class Incoming:
    """A file of which the bytes come. Its owner sets ``filename`` to keep it, and then finds it in ``file``."""

    def __init__(self, content: BinaryIO, shelf: Shelf, caps: StorageCaps) -> None:
        self.content = content
        self.num_bytes = 0
        self.filename: str | None = None
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


def now_s() -> int:
    """Unix time in seconds, as all times here."""
    return int(time.time())


def _load(directory: Path, kind: type[_Stored]) -> Iterator[_Stored]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path} is damaged: {error}") from error


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: a crash leaves what was there before."""
    part = path.with_suffix(".tmp")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _create(path: Path) -> BinaryIO:
    return path.open("xb")


def append(path: Path, line: bytes) -> None:
    """Add a line to a file: whole or not at all, or the next one would continue it."""
    with path.open("ab", buffering=0) as file:
        num_bytes = file.tell()
        unwritten = memoryview(line + b"\n")
        try:
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        except OSError:
            file.truncate(num_bytes)
            raise


def _unlink(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove(content: BinaryIO, path: Path) -> None:
    with suppress(OSError):  # what it has not written yet is not wanted
        content.close()
    path.unlink(missing_ok=True)
