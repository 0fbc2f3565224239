"""The decision log as a file of JSON lines: written beside the engine's loop, read line by line.

Knows nothing of what entries mean.
"""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chairlift.core.decision_log import Entry
from chairlift.errors import ConfigurationError

FLUSH_INTERVAL_S = 0.25
MAX_BUFFERED_BYTES = 64 * 2**20
_CLOSE_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(Entry)


class DecisionLogFile:
    """Appends entries to a file, from a thread of its own, so that a slow disk never delays a step.

    A log with a gap cannot be replayed. So if the disk is full, or so slow that ``max_buffered_bytes`` wait for it, the
    log ends there, with one warning, and serving goes on. An engine that restarts appends to the same file.

    Args:
        path: the file, which only its owner may read if it is new.
        max_buffered_bytes: what may wait for the disk.

    Raises:
        ConfigurationError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, max_buffered_bytes: int = MAX_BUFFERED_BYTES) -> None:
        self._path = path
        self._max_buffered_bytes = max_buffered_bytes
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            needs_newline = not _ends_with_newline(self._file)
        except OSError as error:
            raise ConfigurationError(f"--decision-log {path} cannot be written: {error.strerror}") from error
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        # A process that was killed may have left half a line.
        self._buffer = bytearray(b"\n" if needs_newline else b"")
        self._is_broken = False
        self._has_ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether the log ended before the engine did."""
        return self._is_broken

    def write(self, entry: Entry) -> None:
        """Take an entry. Never blocks and never raises."""
        if self._is_broken:
            return
        line = self._encoder.encode(entry)
        with self._lock:
            self._buffer += line
            self._buffer += b"\n"
            is_too_much = len(self._buffer) > self._max_buffered_bytes
        if is_too_much:
            self._break(f"{self._max_buffered_bytes} bytes wait for the disk")

    def close(self) -> None:
        """Write what is left and close the file; a disk that does not answer is given up after a few seconds."""
        self._has_ended = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            os.close(self._file)

    def _run(self) -> None:
        while not self._is_broken:
            has_ended = self._has_ended
            with self._lock:
                data, self._buffer = self._buffer, bytearray()
            try:
                self._write_all(data)
            except OSError as error:
                self._break(error.strerror or str(error))
            if has_ended:
                break
            self._wake.wait(FLUSH_INTERVAL_S)

    def _write_all(self, data: bytearray) -> None:
        view = memoryview(data)
        while view and not self._is_broken:
            view = view[os.write(self._file, view) :]

    def _break(self, reason: str) -> None:
        self._is_broken = True
        with self._lock:
            self._buffer.clear()
        _logger.warning("the decision log %s ends here: %s; serving goes on without it", self._path, reason)


def read_entries(path: Path) -> Iterator[Entry]:
    """Read a log. Half a line at the end of a run, left by a process that was killed, is skipped.

    Raises:
        ConfigurationError: the file cannot be read, or has a line in the middle of a run that is no entry.
    """
    try:
        with path.open("rb") as file:
            damaged: int | None = None
            for number, line in enumerate(file, start=1):
                entry = _decode(line)
                if entry is None:
                    damaged = damaged or (number if line.strip() else None)
                    continue
                if damaged is not None and entry.get("kind") != "start":
                    raise ConfigurationError(f"line {damaged} of {path} is no entry of a decision log")
                damaged = None
                yield entry
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def _decode(line: bytes) -> Entry | None:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _ends_with_newline(file: int) -> bool:
    """Whether a line can be appended; devices and pipes are always ready."""
    try:
        size = os.lseek(file, 0, os.SEEK_END)
        return size == 0 or os.pread(file, 1, size - 1) == b"\n"
    except OSError:
        return True
