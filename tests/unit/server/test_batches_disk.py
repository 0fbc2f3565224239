"""Files and batches on a disk with faults: contents that are gone, what a crash leaves, and what a full disk leaves."""

import asyncio
import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.config.sections import BatchSettings
from chairlift.server.batches import rests, store
from chairlift.server.batches.objects import ENDED
from chairlift.server.batches.store import BatchStore
from tests.unit.server.test_batches import Site, create, line, post_file, run, until, upload

HEX = itertools.count(1)
FULL = OSError(errno.ENOSPC, "No space left on device")


def hex_id() -> str:
    return f"{next(HEX):032x}"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def failing(monkeypatch: pytest.MonkeyPatch, is_failing: Callable[[Path], bool]) -> None:
    """The disk takes no more than the beginning of a description."""
    write = store.write_whole
    fsync = os.fsync
    fails = False

    def sync(number: int) -> None:
        if fails:
            raise FULL
        fsync(number)

    def write_or_fail(path: Path, content: bytes) -> None:
        nonlocal fails
        fails = is_failing(path)
        write(path, content)

    monkeypatch.setattr(store, "write_whole", write_or_fail)
    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-1"}, {"Range": "bytes=0-0,3-4"}])
def test_a_content_that_is_gone_is_not_found(headers: dict[str, str], tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        path = f"/v1/files/{file_id}/content"
        assert (await site.a.get(path, headers=headers)).status_code in (200, 206)
        (tmp_path / "files" / f"{file_id}.data").unlink()
        answer = await site.a.get(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "file_id")
        assert (await site.a.delete(f"/v1/files/{file_id}")).status_code == 200

    run(Site(tmp_path), work)


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ("x", 400),
        ("lines=0-1", 400),
        ("bytes=", 400),
        ("bytes=3-1", 400),
        ("bytes=5000-", 416),
        ("bytes=0-1,5000-", 416),
    ],
)
def test_a_range_that_is_none_is_told_as_every_error_is(wanted: str, status: int, tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        path = f"/v1/files/{await upload(site.a, line(1))}/content"
        answer = await site.a.get(path, headers={"Range": wanted})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
        assert "Range" in error["message"]
        num_bytes = len(line(1))
        assert answer.headers.get("Content-Range") == (f"bytes */{num_bytes}" if status == 416 else None)
        assert (str(num_bytes) in error["message"]) == (status == 416)

    run(Site(tmp_path), work)


def test_a_content_that_is_deleted_while_it_is_opened_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        content = tmp_path / "files" / f"{file_id}.data"

        def stat_and_delete(path: Any, **options: Any) -> os.stat_result:
            found = stat(path, **options)
            if path == content:
                content.unlink()
            return found

        with monkeypatch.context() as racing:
            racing.setattr(os, "stat", stat_and_delete)
            answer = await site.a.get(f"/v1/files/{file_id}/content")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "file_id")

    run(Site(tmp_path), work)


def test_what_a_crash_leaves_of_batches_is_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "batches"

    async def leave(site: Site) -> None:
        ended, is_open = await site.start(line(1)), await site.start(line(2))
        await site.a.post(f"/v1/batches/{ended}/cancel")
        kept = {f"{ended}.json", f"{is_open}.json", f"{is_open}.out", f"{is_open}.err"}
        for ending in ("out", "err"):
            (folder / f"{is_open}.{ending}").write_bytes(b"")
            (folder / f"{ended}.{ending}").write_bytes(b"x")
            (folder / f"batch_{hex_id()}.{ending}").write_bytes(b"x")
        (folder / f"batch_{hex_id()}.tmp").write_bytes(b"{")
        (folder / f"{is_open}.tmp").write_bytes(b"{")
        (folder / "batch_of_somebody.tmp").write_bytes(b"x")
        BatchStore(tmp_path)
        assert names(folder) == kept | {"batch_of_somebody.tmp"}

    run(Site(tmp_path), leave)


def test_batches_of_which_nobody_is_told_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        for number in range(3):
            await site.a.post(f"/v1/batches/{await site.start(line(number))}/cancel")

    run(Site(tmp_path), work)
    monkeypatch.setattr("chairlift.server.batches.shelves.MAX_ENDED_BATCHES", 1)
    found = BatchStore(tmp_path).shelf("tenant a")
    assert names(tmp_path / "batches") == {f"{batch_id}.json" for batch_id in found.ended_batches}
    assert len(found.ended_batches) == 1


def test_a_file_of_which_the_description_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(site: Site) -> None:
        with monkeypatch.context() as full:
            failing(full, lambda _path: True)
            for _ in range(3):
                assert (await post_file(site.a, b"x" * 1000)).status_code == 507
        assert names(tmp_path / "files") == set()
        assert site.store.shelf("tenant a").num_bytes == 0
        await upload(site.a, b"x")

    run(Site(tmp_path), work)


def test_a_file_that_cannot_be_begun_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> Any:
        raise FULL

    async def work(site: Site) -> None:
        monkeypatch.setattr(store, "create", refuse)
        answer = await post_file(site.a, b"x")
        assert answer.status_code == 507
        assert "No space left on device" in answer.json()["error"]["message"]

    run(Site(tmp_path), work)


def test_a_batch_that_the_disk_does_not_take_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        with monkeypatch.context() as full:
            failing(full, lambda _path: True)
            assert (await create(site.a, file_id)).status_code == 507
        assert (await site.a.get("/v1/batches")).json()["data"] == []
        assert site.store.find_next_batch() is None
        assert names(tmp_path / "batches") == set()

    run(Site(tmp_path), work)


def test_results_of_which_the_description_does_not_fit_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [True, True, False]
    monkeypatch.setattr(rests, "FIRST_PAUSE_S", 0.0)

    async def work(site: Site) -> None:
        batch_id = await site.start(line(1), line(2, max_tokens=-1))
        failing(monkeypatch, lambda path: path.parent.name == "files" and bool(faults) and faults.pop(0))
        await site.work()
        shown = await site.show(batch_id)
        assert (shown["status"], faults) == ("completed", [])
        assert list(await site.results(shown["output_file_id"])) == ["line-1"]
        assert list(await site.results(shown["error_file_id"])) == ["line-2"]
        assert site.store.shelf("tenant a").num_bytes == BatchStore(tmp_path).shelf("tenant a").num_bytes

    run(Site(tmp_path), work)


def test_a_result_that_its_owner_deletes_before_the_end_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rests, "FIRST_PAUSE_S", 0.001)
    is_full = True
    num_files = 0

    def is_failing(path: Path) -> bool:
        nonlocal num_files
        num_files += path.parent.name == "files"
        return is_full and path.parent.name == "files" and num_files > 1

    async def work(site: Site) -> None:
        nonlocal is_full
        first = await site.start(line(1), line(2, max_tokens=-1))
        second = await site.start(line(3))
        failing(monkeypatch, is_failing)
        stored = site.store.find_next_batch()
        assert stored is not None
        assert stored.batch.id == first
        working = asyncio.ensure_future(site.runner.run())
        await until(lambda: num_files > 1)
        shown = await site.show(first)
        assert shown["status"] == "finalizing"
        assert (await site.a.delete(f"/v1/files/{shown['output_file_id']}")).status_code == 200
        is_full = False
        await until(lambda: stored.batch.status in ENDED and site.store.find_next_batch() is None)
        shown = await site.show(first)
        assert shown["status"] == "completed"
        assert list(await site.results(shown["error_file_id"])) == ["line-2"]
        assert (await site.a.get(f"/v1/files/{shown['output_file_id']}")).status_code == 404
        assert (await site.show(second))["status"] == "completed"
        assert site.store.shelf("tenant a").num_bytes == BatchStore(tmp_path).shelf("tenant a").num_bytes
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run(Site(tmp_path, batch=BatchSettings(batch_concurrency=1)), work)
