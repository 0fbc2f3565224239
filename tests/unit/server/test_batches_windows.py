"""The ends of windows: of a batch that waits, of one with more lines than are written at a time, and after a crash."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chairlift.config.sections import BatchSettings
from chairlift.server.batches import api, runner
from chairlift.server.batches.objects import ENDED, StoredBatch
from tests.unit.server.stub_engine import StubEngine
from tests.unit.server.test_batches import EXPIRED, Gate, Site, line, run, until

HOUR_S = 3600


@asynccontextmanager
async def at_work(site: Site) -> AsyncIterator[None]:
    working = asyncio.ensure_future(site.runner.run())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def kept(site: Site, batch_id: str) -> StoredBatch:
    found = site.store.shelf("tenant a").find_batch(batch_id)
    assert found is not None
    return found


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Site, Callable[[Site], Awaitable[None]]], None]:
    """Runs what is done on a site of which the clock goes only when it is told to."""

    def run_timed(site: Site, work: Callable[[Site], Awaitable[None]]) -> None:
        monkeypatch.setattr(api, "now_s", lambda: site.now_s)
        run(site, work)

    return run_timed


def test_a_batch_that_waits_expires_when_its_window_ends(tmp_path: Path, timed: Any) -> None:
    gate = Gate()

    async def work(site: Site) -> None:
        runs, waits, later = (
            await site.start(line(2)),
            await site.start(line(3), line(4), window="1h"),
            await site.start(line(5), window="2h"),
        )
        async with at_work(site):
            await until(lambda: len(site.engine.submitted) == 1)
            site.now_s += HOUR_S - 1
            site.runner.notice()
            await asyncio.sleep(0.01)
            assert kept(site, waits).batch.status == "validating"
            site.now_s += 1
            site.runner.notice()
            await until(lambda: kept(site, waits).batch.status in ENDED)
            shown = await site.show(waits)
            assert (shown["status"], shown["expired_at"], shown["output_file_id"]) == ("expired", site.now_s, None)
            assert shown["in_progress_at"] is None
            assert shown["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
            wanted = {"line-3": EXPIRED, "line-4": EXPIRED}
            assert await site.results(shown["error_file_id"], "error") == wanted
            assert set((await site.results(shown["error_file_id"])).values()) == {None}
            assert (kept(site, runs).batch.status, kept(site, later).batch.status) == ("in_progress", "validating")
            gate.is_open.set()
            await until(lambda: site.store.find_next_batch() is None)
            assert (kept(site, runs).batch.status, kept(site, later).batch.status) == ("completed", "completed")
        assert len(site.engine.submitted) == 2

    timed(Site(tmp_path, StubEngine(script=gate)), work)


def test_a_window_that_ends_is_noticed_by_itself(tmp_path: Path, timed: Any) -> None:
    """Nothing else happens; the clock says that it is a moment to the end, and then that it has come."""

    async def work(site: Site) -> None:
        await site.start(line(2))
        waits = await site.start(line(3), window="1h")
        async with at_work(site):
            await until(lambda: len(site.engine.submitted) == 1)
            batch = kept(site, waits).batch
            batch.expires_at = site.now_s + 0.05  # type: ignore[assignment]
            site.runner.notice()
            await asyncio.sleep(0.01)
            site.now_s += 1
            await until(lambda: batch.status == "expired")

    timed(Site(tmp_path, StubEngine(script=Gate())), work)


def test_a_wrong_line_is_told_whether_the_window_has_ended_or_not(tmp_path: Path, timed: Any) -> None:
    async def work(site: Site) -> None:
        await site.start(line(2))
        wrong = await site.start(b"no json", window="1h")
        async with at_work(site):
            await until(lambda: len(site.engine.submitted) == 1)
            site.now_s += HOUR_S
            site.runner.notice()
            await until(lambda: kept(site, wrong).batch.status in ENDED)
        shown = await site.show(wrong)
        assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", "invalid_json_line")

    timed(Site(tmp_path, StubEngine(script=Gate())), work)


def test_a_batch_that_is_cancelled_while_it_expires_is_cancelled(
    tmp_path: Path, timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(site: Site) -> None:
        await site.start(line(2))
        waits = await site.start(line(3), window="1h")
        async with at_work(site):
            await until(lambda: len(site.engine.submitted) == 1)
            is_read, may_go_on = asyncio.Event(), asyncio.Event()
            settle = site.store.settle

            async def settle_late() -> None:
                is_read.set()
                await may_go_on.wait()
                await settle()

            monkeypatch.setattr(site.store, "settle", settle_late)
            site.now_s += HOUR_S
            site.runner.notice()
            await is_read.wait()
            assert (await site.a.post(f"/v1/batches/{waits}/cancel")).json()["status"] == "cancelling"
            may_go_on.set()
            await until(lambda: kept(site, waits).batch.status in ENDED)
        shown = await site.show(waits)
        assert (shown["status"], shown["error_file_id"], shown["expired_at"]) == ("cancelled", None, None)

    timed(Site(tmp_path, StubEngine(script=Gate())), work)


def test_what_a_crash_leaves_of_an_expired_batch_is_brought_to_its_end(
    tmp_path: Path, timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off when two of five results are written; no line has two, and none runs."""
    monkeypatch.setattr(runner, "_EXPIRED_AT_A_TIME", 2)
    ids: list[str] = []

    async def cut_off(site: Site) -> None:
        ids.append(await site.start(*(line(number) for number in range(3, 8)), window="1h"))
        site.now_s += HOUR_S
        add = site.store.add_results
        crashed = asyncio.Event()

        async def add_and_crash(*arguments: Any, **named: Any) -> None:
            if kept(site, ids[0]).batch.request_counts.failed:
                crashed.set()
                await asyncio.Event().wait()
            await add(*arguments, **named)

        monkeypatch.setattr(site.store, "add_results", add_and_crash)
        async with at_work(site):
            await crashed.wait()

    async def go_on(site: Site) -> None:
        site.now_s += HOUR_S - 30  # a clock that was set back makes no window go on
        await site.work()
        shown = await site.show(ids[0])
        assert (shown["status"], shown["expired_at"]) == ("expired", 1_000_000 + HOUR_S)
        assert shown["request_counts"] == {"total": 5, "completed": 0, "failed": 5}
        content = (await site.a.get(f"/v1/files/{shown['error_file_id']}/content")).text
        assert [json.loads(one)["custom_id"] for one in content.splitlines()] == [f"line-{n}" for n in range(3, 8)]
        assert site.engine.submitted == []

    timed(Site(tmp_path), cut_off)
    timed(Site(tmp_path), go_on)


def test_expired_lines_keep_to_what_their_tenant_may_keep(
    tmp_path: Path, timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_EXPIRED_AT_A_TIME", 1)
    content = [line(number) for number in range(3, 11)]
    most = len(b"\n".join(content)) + 700

    async def work(site: Site) -> None:
        batch_id = await site.start(*content, window="1h")
        site.now_s += HOUR_S
        await site.work()
        shown = await site.show(batch_id)
        assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("expired", "storage_full")
        assert 0 < len(await site.results(shown["error_file_id"])) == shown["request_counts"]["failed"] < 8
        assert site.store.shelf("tenant a").num_bytes <= most

    timed(Site(tmp_path, batch=BatchSettings(max_batch_storage_bytes=most)), work)


def test_a_window_that_ends_after_the_last_answer_is_kept_to(tmp_path: Path, timed: Any) -> None:
    ids: list[str] = []

    async def answer_all(site: Site) -> None:
        ids.append(await site.start(line(1), window="1h"))
        stored = kept(site, ids[0])
        save = site.store.save

        async def crash_at_the_end(one: StoredBatch, **changes: Any) -> None:
            if one.batch.request_counts.completed:
                await asyncio.Event().wait()
            await save(one, **changes)

        site.store.save = crash_at_the_end  # type: ignore[method-assign]
        async with at_work(site):
            await until(lambda: stored.batch.request_counts.completed == 1)

    async def go_on(site: Site) -> None:
        site.now_s += 2 * HOUR_S
        await site.work()
        shown = await site.show(ids[0])
        assert (shown["status"], shown["expired_at"], shown["error_file_id"]) == ("completed", None, None)

    timed(Site(tmp_path), answer_all)
    timed(Site(tmp_path), go_on)
