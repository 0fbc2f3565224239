"""A disk that refuses single steps: each is told, leaves everything as it was, and keeps no other batch waiting."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.server.batches import download, rests, runner, store
from chairlift.server.batches.objects import ENDED, StoredBatch
from chairlift.server.batches.store import BatchStore
from tests.unit.server.stub_engine import StubEngine
from tests.unit.server.test_batches import Gate, Site, create, line, run, until, upload
from tests.unit.server.test_batches_disk import FULL, names
from tests.unit.server.test_batches_windows import HOUR_S, at_work, kept


def broken_disk() -> OSError:
    return OSError(errno.EIO, "Input/output error")


def refuse(*_arguments: Any, **_options: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def on_disk(folder: Path, batch_id: str) -> StoredBatch:
    return msgspec.json.decode((folder / "batches" / f"{batch_id}.json").read_bytes(), type=StoredBatch)


def told(answer: Any) -> None:
    assert (answer.status_code, answer.json()["error"]["type"]) == (507, "internal_server_error")
    assert "--batch-dir" in answer.json()["error"]["message"]
    assert "No space left on device" in answer.json()["error"]["message"]


def test_a_batch_of_which_the_cancellation_does_not_fit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(site: Site) -> None:
        runs, waits = await site.start(line(2)), await site.start(line(3))
        async with at_work(site):
            await until(lambda: len(site.engine.submitted) == 1)
            before = {batch_id: await site.show(batch_id) for batch_id in (runs, waits)}
            with monkeypatch.context() as full:
                full.setattr(store, "write_whole", refuse)
                for batch_id in (runs, waits):
                    told(await site.a.post(f"/v1/batches/{batch_id}/cancel"))
            for batch_id in (runs, waits):
                assert await site.show(batch_id) == before[batch_id]
                assert on_disk(tmp_path, batch_id).batch.cancelling_at is None
            assert (await site.a.post(f"/v1/batches/{waits}/cancel")).json()["status"] == "cancelled"
            gate.is_open.set()
            await until(lambda: kept(site, runs).batch.status in ENDED)
        assert (await site.show(runs))["status"] == "completed"

    gate = Gate()
    run(Site(tmp_path, StubEngine(script=gate)), work)


def test_a_batch_that_ends_while_it_is_cancelled_has_one_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is written first: what is on the disk is what is told."""

    async def work(site: Site) -> None:
        batch_id = await site.start(line(1))
        stored = kept(site, batch_id)
        async with at_work(site):
            await until(lambda: stored.batch.finalizing_at is not None or stored.batch.request_counts.completed == 1)
            await site.a.post(f"/v1/batches/{batch_id}/cancel")
            await until(lambda: stored.batch.status in ENDED)
        assert on_disk(tmp_path, batch_id).batch == stored.batch

    run(Site(tmp_path), work)


def test_a_waiting_batch_is_not_begun_while_its_cancellation_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(site: Site) -> None:
        batch_id = await site.start(line(1))
        save = site.store.save
        is_written, may_go_on = asyncio.Event(), asyncio.Event()

        async def save_late(stored: StoredBatch, **changes: Any) -> None:
            is_written.set()
            await may_go_on.wait()
            await save(stored, **changes)

        monkeypatch.setattr(site.store, "save", save_late)
        cancelling = asyncio.ensure_future(site.a.post(f"/v1/batches/{batch_id}/cancel"))
        await is_written.wait()
        async with at_work(site):
            for _ in range(20):
                await asyncio.sleep(0.001)
            may_go_on.set()
            assert (await cancelling).json()["status"] == "cancelled"
        assert site.engine.submitted == []

    run(Site(tmp_path), work)


def test_a_file_that_the_disk_does_not_let_go_of_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        num_bytes = site.store.shelf("tenant a").num_bytes
        with monkeypatch.context() as full:
            full.setattr(store, "unlink", refuse)
            told(await site.a.delete(f"/v1/files/{file_id}"))
        assert (await site.a.get(f"/v1/files/{file_id}/content")).content == line(1)
        assert site.store.shelf("tenant a").num_bytes == num_bytes
        assert list(BatchStore(tmp_path).shelf("tenant a").files) == [file_id]
        assert (await site.a.delete(f"/v1/files/{file_id}")).status_code == 200
        assert names(tmp_path / "files") == set()

    run(Site(tmp_path), work)


def test_a_content_that_stays_is_removed_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = store.unlink

    def refuse_contents(*paths: Path) -> None:
        if any(path.suffix == ".data" for path in paths):
            raise broken_disk()
        unlink(*paths)

    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        with monkeypatch.context() as broken:
            broken.setattr(store, "unlink", refuse_contents)
            assert (await site.a.delete(f"/v1/files/{file_id}")).status_code == 200
        assert names(tmp_path / "files") == {f"{file_id}.data"}
        assert (await site.a.get(f"/v1/files/{file_id}")).status_code == 404
        BatchStore(tmp_path)
        assert names(tmp_path / "files") == set()

    run(Site(tmp_path), work)


def test_a_content_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        path = f"/v1/files/{await upload(site.a, line(1))}/content"
        with monkeypatch.context() as broken:
            broken.setattr(download.os, "stat", refuse)
            told(await site.a.get(path))
        with monkeypatch.context() as broken:
            broken.setattr("anyio.open_file", refuse)
            told(await site.a.get(path))
        assert (await site.a.get(path)).content == line(1)

    run(Site(tmp_path), work)


@pytest.mark.parametrize("step", ["find_lines", "read_request"])
def test_a_batch_that_the_disk_keeps_from_going_on_keeps_nobody_waiting(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input cannot be read, before or after it has begun; it can still be cancelled."""
    work_on = getattr(runner, step)
    broken: list[Path] = []

    def work_or_fail(path: Path, *arguments: Any) -> Any:
        if path in broken:
            raise broken_disk()
        return work_on(path, *arguments)

    async def work(site: Site) -> None:
        monkeypatch.setattr(runner, step, work_or_fail)
        first, second = await site.start(line(1)), await site.start(line(3))
        broken.append(site.store.content_path(site.store.shelf("tenant a").files[await input_of(site, first)].file))
        async with at_work(site):
            await until(lambda: kept(site, second).batch.status == "completed")
            assert kept(site, first).batch.status == ("validating" if step == "find_lines" else "in_progress")
            assert kept(site, first).batch.errors is None
            await site.a.post(f"/v1/batches/{first}/cancel")
            await until(lambda: kept(site, first).batch.status == "cancelled")
        assert (await site.show(first))["output_file_id"] is None

    run(Site(tmp_path), work)


async def input_of(site: Site, batch_id: str) -> str:
    return (await site.show(batch_id))["input_file_id"]


def test_a_batch_whose_input_cannot_be_read_fails_when_its_window_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rests, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(rests, "MAX_PAUSE_S", 0.001)
    num_tries = 0

    def fail(*_arguments: Any) -> Any:
        nonlocal num_tries
        num_tries += 1
        raise broken_disk()

    async def work(site: Site) -> None:
        monkeypatch.setattr("chairlift.server.batches.api.now_s", lambda: site.now_s)
        monkeypatch.setattr(runner, "find_lines", fail)
        batch_id = await site.start(line(1), window="1h")
        async with at_work(site):
            await until(lambda: num_tries > 2)
            assert (await site.show(batch_id))["status"] == "validating"
            site.now_s += HOUR_S
            await until(lambda: kept(site, batch_id).batch.status in ENDED)
        shown = await site.show(batch_id)
        assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", "file_unreadable")
        assert "Input/output error" in shown["errors"]["data"][0]["message"]

    run(Site(tmp_path), work)


def test_ids_of_results_are_on_the_disk_before_the_results_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a crash after a fault of the disk would run all lines again."""
    monkeypatch.setattr(rests, "FIRST_PAUSE_S", 0.001)
    write = store.write_whole
    faults = [FULL]

    def write_or_fail(path: Path, content: bytes) -> None:
        if faults and path.parent.name == "batches" and b'"finalizing"' in content:
            raise faults.pop()
        if path.parent.name == "files":
            (batch_id,) = ids
            assert on_disk(tmp_path, batch_id).batch.output_file_id == path.stem
        write(path, content)

    ids: list[str] = []

    async def work(site: Site) -> None:
        ids.append(await site.start(line(1)))
        monkeypatch.setattr(store, "write_whole", write_or_fail)
        await site.work()
        assert (await site.show(ids[0]))["status"] == "completed"
        assert len(site.engine.submitted) == 1

    run(Site(tmp_path), work)


def test_a_batch_that_does_not_fit_is_never_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        may_go_on = asyncio.Event()

        async def fail_late(*_arguments: Any, **_changes: Any) -> None:
            site.runner.notice()
            await may_go_on.wait()
            raise OSError(errno.ENOSPC, "No space left on device")

        async with at_work(site):
            with monkeypatch.context() as full:
                full.setattr(site.store, "save", fail_late)
                creating = asyncio.ensure_future(create(site.a, file_id))
                await until(lambda: bool(site.store.shelf("tenant a").open_batches))
                assert (await site.a.delete(f"/v1/files/{file_id}")).status_code == 400
                for _ in range(20):
                    await asyncio.sleep(0.001)
                may_go_on.set()
                told(await creating)
        assert site.engine.submitted == []
        assert (await site.a.get("/v1/batches")).json()["data"] == []

    run(Site(tmp_path), work)
