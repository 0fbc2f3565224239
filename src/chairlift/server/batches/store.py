"""Files and batches in a folder, which a restart finds again.

Knows nothing of HTTP. Names in the folder are ids made here; what a client sends is only looked up among them.

::

    FOLDER/files/file-....json, file-....data      what a file is, and its content
    FOLDER/batches/batch_....json                  what a batch is
    FOLDER/batches/batch_....out, batch_....err    its results so far, one line for each request
"""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from chairlift.errors import ConfigurationError
from chairlift.server.batches.objects import Batch, FileObject, StoredBatch, StoredFile

_Stored = TypeVar("_Stored", StoredFile, StoredBatch)


class BatchStore:
    """Everything that is kept, in memory but for the contents of files.

    Raises:
        ConfigurationError: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._files_dir, self._batches_dir = folder / "files", folder / "batches"
        try:
            for directory in (self._files_dir, self._batches_dir):
                directory.mkdir(parents=True, exist_ok=True)
            self.files = {stored.file.id: stored for stored in _load(self._files_dir, StoredFile)}
            self.batches = {stored.batch.id: stored for stored in _load(self._batches_dir, StoredBatch)}
        except OSError as error:
            raise ConfigurationError(f"--batch-dir {folder} cannot be used: {error.strerror}") from error

    def content_path(self, file_id: str) -> Path:
        """Where the content of a file of ours is."""
        return self._files_dir / f"{self.files[file_id].file.id}.data"

    def new_file_id(self) -> str:
        """An id that nobody can guess."""
        return f"file-{secrets.token_hex(16)}"

    def add_file(
        self, owner: str, filename: str, purpose: str, content: Path, file_id: str | None = None
    ) -> FileObject:
        """Keep a file whose content is at ``content``, which is moved, if it was not moved before a crash."""
        file_id = file_id or self.new_file_id()
        kept = self._files_dir / f"{file_id}.data"
        if content.exists():
            content.replace(kept)
        num_bytes = kept.stat().st_size
        file = FileObject(id=file_id, bytes=num_bytes, created_at=now_s(), filename=filename, purpose=purpose)
        stored = StoredFile(owner, file)
        _write(self._files_dir / f"{file.id}.json", stored)
        self.files[file.id] = stored
        return file

    def new_content(self) -> Path:
        """Where a content may be written that is not a file yet."""
        return self._files_dir / f"{secrets.token_hex(16)}.part"

    def delete_file(self, file_id: str) -> None:
        """Forget a file."""
        content = self.content_path(file_id)
        del self.files[file_id]
        for path in (content.with_suffix(".json"), content):
            path.unlink(missing_ok=True)

    def save(self, stored: StoredBatch) -> None:
        """Write a batch as it is now."""
        self.batches[stored.batch.id] = stored
        _write(self._batches_dir / f"{stored.batch.id}.json", stored)

    def results_path(self, batch: Batch, *, is_error: bool) -> Path:
        """Where results are gathered."""
        return self._batches_dir / f"{batch.id}.{'err' if is_error else 'out'}"


def now_s() -> int:
    """Unix time in seconds, as all times here."""
    return int(time.time())


def _load(directory: Path, kind: type[_Stored]) -> Iterator[_Stored]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path} is damaged: {error}") from error


def _write(path: Path, stored: StoredFile | StoredBatch) -> None:
    """Whole or not at all: a crash leaves what was there before."""
    part = path.with_suffix(".tmp")
    with part.open("wb") as file:
        file.write(msgspec.json.encode(stored))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
