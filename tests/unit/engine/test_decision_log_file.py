"""The log's file: everything arrives in order, and a disk that is full or slow never hurts whoever writes."""

import contextlib
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from chairlift.engine.decision_log_file import DecisionLogFile, read_entries
from chairlift.errors import ConfigurationError


def entry(number: int) -> dict:
    return {"kind": "start" if number == 0 else "plan", "t": number, "plan": None, "ratio": 0.1 + number}


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = DecisionLogFile(path)
    for number in range(1000):
        log.write(entry(number))
    log.close()
    assert list(read_entries(path)) == [entry(number) for number in range(1000)]
    assert not log.is_broken


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    DecisionLogFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_restart_appends_and_half_a_line_before_it_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind":"start","t":0}\n{"kind":"plan","t":1,"pl')
    log = DecisionLogFile(path)
    log.write(entry(0))
    log.close()
    assert list(read_entries(path)) == [{"kind": "start", "t": 0}, entry(0)]


def test_half_a_line_at_the_end_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind":"start","t":0}\n{"kind":"plan","t":1}\n{"ki')
    assert [read["t"] for read in read_entries(path)] == [0, 1]


def test_a_damaged_line_within_a_run_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind":"start","t":0}\n\xff\xfe\n{"kind":"plan","t":1}\n')
    with pytest.raises(ConfigurationError, match=r"line 2 of .* is no entry"):
        list(read_entries(path))


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--decision-log .* cannot be written: No such file"):
        DecisionLogFile(tmp_path / "absent" / "log.jsonl")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        list(read_entries(tmp_path / "absent.jsonl"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_log_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = DecisionLogFile(Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        log.write(entry(0))
        log.close()
        for number in range(100):
            log.write(entry(number))
    assert log.is_broken
    assert [record.message for record in caplog.records] == [
        "the decision log /dev/full ends here: No space left on device; serving goes on without it"
    ]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs files by number")
def test_a_disk_that_does_not_keep_up_ends_the_log_and_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A pipe that nobody reads takes 64 KiB; then its writer blocks for as long as the pipe is there."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    log = DecisionLogFile(Path(f"/dev/fd/{writer}"), max_buffered_bytes=1000)
    try:
        with caplog.at_level(logging.WARNING):
            for number in range(100_000):
                log.write(entry(number))
                if log.is_broken:
                    break
        assert log.is_broken
        assert "1000 bytes wait for the disk" in caplog.text
    finally:
        # Reading lets the blocked thread end.
        drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 65536), b"")])
        drain.start()
        log.close()
        os.close(writer)
        drain.join()
        os.close(reader)
