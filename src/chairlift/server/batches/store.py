"""Files and batches in a folder, which a restart finds again.

Knows nothing of HTTP. Names in the folder are ids made here; what a client sends is only looked up among them.

::

    FOLDER/files/file-....json, file-....data      what a file is, and its content
    FOLDER/batches/batch_....json                  what a batch is
    FOLDER/batches/batch_....out, batch_....err    its results so far, one line for each request
"""

import asyncio
import errno
import itertools
import logging
import os
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from chairlift.config.sections import BatchSettings
from chairlift.errors import ChairliftError, ConfigurationError
from chairlift.server.batches.disk import append, create, remove, unlink, write_whole
from chairlift.server.batches.incoming import Incoming
from chairlift.server.batches.objects import ENDED, Batch, FileObject, StoredBatch, StoredFile
from chairlift.server.batches.shelves import Shelf, StorageCaps


class DiskError(ChairliftError):
    """The folder of ``--batch-dir`` does not take what it should keep, or does not give what it has."""

    http_status = 507


class _ContentGoneError(FileNotFoundError):
    """Somebody has removed a content, and nothing else is wrong."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, os.strerror(errno.ENOENT))


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
        self._numbers = itertools.count(1)
        self._unwritten: set[str] = set()
        self.expiring_changed = asyncio.Event()
        """Set when there is another file that expires."""
        try:
            for directory in (self._files_dir, self._batches_dir):
                directory.mkdir(parents=True, exist_ok=True)
            self._find_all()
        except OSError as error:
            raise ConfigurationError(f"--batch-dir {folder} cannot be used: {error.strerror}") from error

    def shelf(self, owner: str) -> Shelf:
        """What one owner keeps, and nobody else sees; whoever keeps nothing takes no memory by asking."""
        return self._shelves.get(owner) or Shelf()

    def open_batches(self) -> Iterator[StoredBatch]:
        """All batches that have not ended, but for those that are not on the disk yet."""
        found = (stored for shelf in self._shelves.values() for stored in shelf.open_batches.values())
        return (stored for stored in found if stored.batch.id not in self._unwritten)

    def find_next_batch(self, but_for: Container[str] = ()) -> StoredBatch | None:
        """The oldest batch that has not ended and has none of these ids."""
        waiting = (stored for stored in self.open_batches() if stored.batch.id not in but_for)
        return min(waiting, key=lambda stored: stored.age_key, default=None)

    def content_path(self, file: FileObject) -> Path:
        """Where the content of a file of ours is."""
        return self._files_dir / f"{file.id}.data"

    def find_expiring_files(self) -> Iterator[StoredFile]:
        """All files that are not kept without end."""
        found = (stored for shelf in self._shelves.values() for stored in shelf.files.values())
        return (stored for stored in found if stored.file.expires_at is not None)

    def new_number(self) -> int:
        """What sorts the next thing that is kept behind all others."""
        return next(self._numbers)

    def new_file_id(self) -> str:
        """An id that nobody can guess."""
        return f"file-{secrets.token_hex(16)}"

    @asynccontextmanager
    async def incoming(self, owner: str) -> AsyncGenerator[Incoming]:
        """A file that comes now; whatever is not kept by the end is gone.

        Raises:
            StorageFullError: there is no room for another file.
            DiskError: the disk does not take it.
        """
        path, shelf = self._files_dir / f"{secrets.token_hex(16)}.part", self._shelves[owner]
        try:
            content = await self._on_disk(create, path)
        except OSError as error:
            raise disk_error("does not take the file", error) from error
        upload = Incoming(content, shelf, self.caps)
        try:
            yield upload
            self.caps.check_files(shelf)
            await self._on_disk(content.close)
            if upload.filename is not None:
                file = new_file(self.new_file_id(), upload.filename, "batch", upload.expires_after_s)
                stored = await self._on_disk(self._keep, owner, file, path)
                shelf.files[stored.file.id] = stored
                upload.file = stored.file
                self.expiring_changed.set()
        except OSError as error:
            raise disk_error("does not take the file", error) from error
        finally:
            if upload.file is None:
                shelf.num_bytes -= upload.num_bytes
                await self._on_disk(remove, content, path)

    async def publish(self, stored: StoredBatch, file_id: str, *, is_error: bool) -> None:
        """Make a file of results, unless that was done before a crash, or its owner has deleted it since."""
        shelf = self._shelves[stored.owner]
        if file_id in shelf.files:
            return
        name = f"{stored.batch.id}_{'errors' if is_error else 'output'}.jsonl"
        content = self.results_path(stored.batch, is_error=is_error)
        was_moved = not content.exists()
        result = new_file(file_id, name, "batch_output", stored.output_expires_after_s)
        try:
            file = await self._on_disk(self._keep, stored.owner, result, content)
        except _ContentGoneError:
            logger.warning("%s of %s was deleted before the batch ended", file_id, stored.batch.id)
            return
        shelf.files[file_id] = file
        self.expiring_changed.set()
        if was_moved:
            shelf.num_bytes += file.file.bytes  # where it was before the crash it was not found, and not counted

    async def delete_file(self, stored: StoredFile) -> None:
        """Forget a file.

        Raises:
            DiskError: the disk does not let go of it, and it is kept.
        """
        shelf = self._shelves[stored.owner]
        del shelf.files[stored.file.id]
        shelf.num_bytes -= stored.file.bytes
        content = self.content_path(stored.file)
        try:
            await self._on_disk(unlink, content.with_suffix(".json"))
        except OSError as error:
            shelf.files[stored.file.id] = stored
            shelf.num_bytes += stored.file.bytes
            raise disk_error("does not let go of the file", error) from error
        await self._clear(content)

    async def add_batch(self, stored: StoredBatch) -> None:
        """Keep a new batch.

        Raises:
            DiskError: the disk does not take it, and there is no such batch.
        """
        shelf, batch_id = self._shelves[stored.owner], stored.batch.id
        shelf.put_batch(stored)  # at once: it counts among those that there may be, and its file is in use
        self._unwritten.add(batch_id)
        try:
            await self.save(stored)
        except OSError as error:
            del shelf.open_batches[batch_id]
            raise disk_error("does not take the batch", error) from error
        finally:
            self._unwritten.discard(batch_id)

    async def save(self, stored: StoredBatch, **changes: Any) -> None:
        """Write a batch with some fields of it changed, and change them once that is written.

        Raises:
            OSError: the disk does not take it; nothing has changed, neither there nor in memory.
        """
        changed = replace(stored, batch=replace(stored.batch, **changes))
        await self._on_disk(write_whole, self._batches_dir / f"{stored.batch.id}.json", msgspec.json.encode(changed))
        for name, value in changes.items():
            setattr(stored.batch, name, value)
        for old in self._shelves[stored.owner].put_batch(stored):
            await self._clear(*(self._batches_dir / f"{old.batch.id}.{ending}" for ending in ("json", "out", "err")))

    async def add_results(self, stored: StoredBatch, lines: Sequence[bytes], *, is_error: bool) -> None:
        """Write down results and count them, all or none, also if whoever waits for that is cancelled."""
        text = b"\n".join(lines)
        counts, shelf = stored.batch.request_counts, self._shelves[stored.owner]

        def count(written: asyncio.Future[None]) -> None:
            self._writing.discard(written)
            if written.cancelled() or written.exception() is not None:
                return
            shelf.num_bytes += len(text) + 1
            if is_error:
                counts.failed += len(lines)
            else:
                counts.completed += len(lines)

        path = self.results_path(stored.batch, is_error=is_error)
        writing = asyncio.ensure_future(self._on_disk(append, path, text))
        self._writing.add(writing)
        writing.add_done_callback(count)
        await asyncio.shield(writing)

    async def settle(self) -> None:
        """Wait until all results are written down that are on their way."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def results_path(self, batch: Batch, *, is_error: bool) -> Path:
        """Where results are gathered."""
        return self._batches_dir / f"{batch.id}.{'err' if is_error else 'out'}"

    def _keep(self, owner: str, file: FileObject, content: Path) -> StoredFile:
        """Move a content to where files are; not there, it was moved before a crash. On the disk's thread.

        Raises:
            _ContentGoneError: it is neither here nor there.
            OSError: the disk does not take it, which leaves the content where it was.
        """
        kept = self.content_path(file)
        is_moved = content.exists()
        if is_moved:
            content.replace(kept)
        elif not kept.exists():
            raise _ContentGoneError
        try:
            stored = StoredFile(owner, replace(file, bytes=kept.stat().st_size), self.new_number())
            write_whole(self._files_dir / f"{file.id}.json", msgspec.json.encode(stored))
        except OSError:
            if is_moved:
                kept.replace(content)
            raise
        return stored

    async def _clear(self, *paths: Path) -> None:
        """Remove what nobody is told of any more; what stays is removed at the next start."""
        try:
            await self._on_disk(unlink, *paths)
        except OSError:
            logger.warning("--batch-dir: %s could not be removed", paths[0].name, exc_info=True)

    async def _on_disk(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Do something that a disk may keep waiting, after all that was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, partial(work, *arguments))

    def _find_all(self) -> None:
        files = sorted(_load(self._files_dir, StoredFile), key=lambda stored: stored.age_key)
        for stored in files:
            shelf = self._shelves[stored.owner]
            shelf.files[stored.file.id] = stored
            shelf.num_bytes += stored.file.bytes
        batches = sorted(_load(self._batches_dir, StoredBatch), key=lambda stored: stored.age_key)
        for stored in batches:
            shelf = self._shelves[stored.owner]
            shelf.put_batch(stored)
            if stored.batch.status not in ENDED:
                results = (self.results_path(stored.batch, is_error=is_error) for is_error in (False, True))
                shelf.num_bytes += sum(path.stat().st_size for path in results if path.exists())
        self._numbers = itertools.count(1 + max((stored.number for stored in (*files, *batches)), default=0))
        self._clear_files()
        self._clear_batches()

    def _clear_files(self) -> None:
        """Remove what a crash left of files that were not kept yet."""
        batches = [stored.batch for stored in self.open_batches()]
        ids = {file_id for shelf in self._shelves.values() for file_id in shelf.files}
        ids.update(file_id for batch in batches for file_id in (batch.output_file_id, batch.error_file_id) if file_id)
        for pattern in (f"{_HEX_ID}.part", f"file-{_HEX_ID}.tmp", f"file-{_HEX_ID}.data"):
            for path in self._files_dir.glob(pattern):
                if path.stem not in ids:
                    path.unlink()

    def _clear_batches(self) -> None:
        """Remove what a crash left of batches that were not kept yet, or are told about no more."""
        open_ids = {stored.batch.id for stored in self.open_batches()}
        ended_ids = {batch_id for shelf in self._shelves.values() for batch_id in shelf.ended_batches}
        wanted: dict[str, Container[str]] = {"json": open_ids | ended_ids, "out": open_ids, "err": open_ids, "tmp": ()}
        for ending, ids in wanted.items():
            for path in self._batches_dir.glob(f"batch_{_HEX_ID}.{ending}"):
                if path.stem not in ids:
                    path.unlink()


def new_file(file_id: str, filename: str, purpose: str, expires_after_s: int | None) -> FileObject:
    """A file that is created now, and of which the content is not there yet."""
    created_at = now_s()
    expires_at = None if expires_after_s is None else created_at + expires_after_s
    return FileObject(
        id=file_id, bytes=0, created_at=created_at, filename=filename, purpose=purpose, expires_at=expires_at
    )


def now_s() -> int:
    """Unix time in seconds, as all times here."""
    return int(time.time())


def disk_error(what: str, error: OSError) -> DiskError:
    """Log what the folder does not do, and say it to whoever asked for it."""
    logger.error("the folder of --batch-dir %s", what, exc_info=error)
    return DiskError(f"the folder of --batch-dir {what}: {error.strerror}")


def _load(directory: Path, kind: type[_Stored]) -> Iterator[_Stored]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path} is damaged: {error}") from error
