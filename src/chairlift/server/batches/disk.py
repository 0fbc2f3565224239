"""Single steps on a disk, each of which a crash or a full disk leaves undone. Knows nothing of what is kept."""

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all: a crash leaves what was there before."""
    part = path.with_suffix(".tmp")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def create(path: Path) -> BinaryIO:
    """A file that is not there yet."""
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


def unlink(*paths: Path) -> None:
    """Remove files that may be gone."""
    for path in paths:
        path.unlink(missing_ok=True)


def remove(content: BinaryIO, path: Path) -> None:
    """Remove a file that is still written."""
    with suppress(OSError):  # what it has not written yet is not wanted
        content.close()
    with suppress(OSError):  # the next start removes it
        path.unlink(missing_ok=True)
