"""Files and batches on a scripted engine: whose they are, how much of them there may be, and how each batch ends."""

import asyncio
import errno
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.config.sections import BatchSettings, ConnectionSettings, LimitSettings, ServerSettings, TenancySettings
from chairlift.config.tenants import TenantKey, Tenants
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import DrainingError
from chairlift.server.access import Access
from chairlift.server.app import create_app
from chairlift.server.batches import rests, shelves, store
from chairlift.server.batches.api import Batches
from chairlift.server.batches.lines import LOWEST_TIER
from chairlift.server.batches.objects import ENDED
from chairlift.server.batches.runner import BatchRunner
from chairlift.server.batches.store import BatchStore
from chairlift.server.batches.upload import Form
from chairlift.server.context import WebSections
from tests.unit.server.stub_engine import StubEngine, letters

ENDPOINT = "/v1/completions"
TENANTS = Tenants(keys=(TenantKey("a", "sk-a"), TenantKey("b", "sk-b")))
EXPIRED = {"code": "batch_expired", "message": "the completion window ended before this request was answered"}
TOO_OFTEN = 10_000
"""Turns of the event loop after which a condition counts as never coming."""


def line(number: int, **body: Any) -> bytes:
    fields = {"prompt": f"p{number}", "max_tokens": 2, **body}
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": fields}).encode()


@dataclass
class Site:
    """An application, its batches, and a client for each tenant."""

    folder: Path
    engine: StubEngine = field(default_factory=StubEngine)
    batch: BatchSettings = field(default_factory=BatchSettings)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    tenancy: TenancySettings | None = None
    tenants: Tenants = TENANTS
    headers: tuple[dict[str, str], dict[str, str]] = (
        {"Authorization": "Bearer sk-a"},
        {"Authorization": "Bearer sk-b"},
    )
    now_s: int = 1_000_000

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Site"]:
        settings = replace(self.batch, batch_dir=str(self.folder))
        sections = WebSections(batches=settings, connections=self.connections, limits=self.limits)
        app = create_app(self.engine, self.server, Access(self.server, self.tenancy, self.tenants), sections)
        batches: Batches = app.state.batches
        self.store = batches.store
        self.runner = batches.runner = BatchRunner(app, batches.store, settings, clock=lambda: self.now_s)
        transport = httpx.ASGITransport(app)
        of_a, of_b = self.headers
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=of_a) as self.a,
            httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=of_b) as self.b,
        ):
            yield self

    async def start(self, *content: bytes, window: str = "24h") -> str:
        """Upload lines and start a batch with them."""
        made = await create(self.a, await upload(self.a, b"\n".join(content)), window)
        assert made.status_code == 200, made.text
        return made.json()["id"]

    async def work(self) -> None:
        """Let the runner work until nothing is left, or the engine drains."""
        working = asyncio.ensure_future(self.runner.run())
        await until(lambda: working.done() or self.store.find_next_batch() is None)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    async def show(self, batch_id: str) -> dict[str, Any]:
        return (await self.a.get(f"/v1/batches/{batch_id}")).json()

    async def results(self, file_id: str | None, part: str = "response") -> dict[str, Any]:
        if file_id is None:
            return {}
        content = (await self.a.get(f"/v1/files/{file_id}/content")).text
        return {found["custom_id"]: found[part] for found in map(json.loads, content.splitlines())}


async def post_file(client: httpx.AsyncClient, content: bytes, purpose: str = "batch") -> httpx.Response:
    return await client.post("/v1/files", files={"file": ("f.jsonl", content)}, data={"purpose": purpose})


async def upload(client: httpx.AsyncClient, content: bytes) -> str:
    answer = await post_file(client, content)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def create(client: httpx.AsyncClient, file_id: str, window: str = "24h") -> httpx.Response:
    fields = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": window}
    return await client.post("/v1/batches", json=fields)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(TOO_OFTEN):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def run(site: Site, work: Callable[[Site], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with site.open():
            await work(site)

    asyncio.run(inside())


def test_what_one_tenant_keeps_does_not_exist_for_others(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        batch_id = (await create(site.a, file_id)).json()["id"]
        for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"):
            hidden, missing = await site.b.get(path), await site.b.get(path[: path.rindex("/")] + "/nothing")
            assert (hidden.status_code, missing.status_code) == (404, 404)
            assert (await site.a.get(path)).status_code == 200
        assert (await site.b.delete(f"/v1/files/{file_id}")).status_code == 404
        assert (await site.b.post(f"/v1/batches/{batch_id}/cancel")).status_code == 404
        assert (await create(site.b, file_id)).status_code == 404
        for path in ("/v1/files", "/v1/batches"):
            assert (await site.b.get(path)).json()["data"] == []
            assert len((await site.a.get(path)).json()["data"]) == 1
        await site.work()
        output = (await site.show(batch_id))["output_file_id"]
        assert (await site.a.get(f"/v1/files/{output}/content")).status_code == 200
        assert (await site.b.get(f"/v1/files/{output}/content")).status_code == 404
        assert (await site.b.get("/v1/files")).json()["data"] == []

    run(Site(tmp_path), work)
    run(Site(tmp_path), lambda site: still_hidden(site))


async def still_hidden(site: Site) -> None:
    files = (await site.a.get("/v1/files")).json()["data"]
    assert len(files) == 2
    for file in files:
        assert (await site.b.get(f"/v1/files/{file['id']}")).status_code == 404


def test_requests_of_a_batch_stay_in_the_least_urgent_tier(tmp_path: Path) -> None:
    wishes: list[dict[str, Any]] = [{}, {"priority": 0}, {"priority": -5}, {"service_tier": "priority"}]

    async def work(site: Site) -> None:
        batch_id = await site.start(*(line(number, **wish) for number, wish in enumerate(wishes)))
        await site.work()
        assert (await site.show(batch_id))["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
        assert [sent["terms"].priority for sent in site.engine.submitted] == [LOWEST_TIER] * 4
        assert {sent["terms"].tenant for sent in site.engine.submitted} == {"a"}

    run(Site(tmp_path), work)


@dataclass
class Gate:
    """A script of the stub engine: the prompt ``p2`` waits until it is let through."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    ending: ChoiceDelta | None = None

    async def __call__(self, prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        if bytes(prompt) == b"p2":
            await self.is_open.wait()
        async for delta in letters(prompt, sampling):
            last = self.ending is not None and bytes(prompt) == b"p2"
            yield replace(delta, finish_reason="abort") if last else delta


def test_what_is_not_done_within_the_window_expires(tmp_path: Path) -> None:
    site = Site(tmp_path, StubEngine(script=Gate()))

    async def work(site: Site) -> None:
        batch_id = await site.start(line(1), line(2), window="2h")
        working = asyncio.ensure_future(site.runner.run())
        stored = site.store.find_next_batch()
        assert stored is not None
        await until(lambda: stored.batch.request_counts.completed == 1)
        site.now_s = stored.batch.expires_at - 1
        site.runner.notice()
        await asyncio.sleep(0)
        assert stored.batch.status == "in_progress"
        site.now_s += 1
        site.runner.notice()
        await until(lambda: stored.batch.status in ENDED)
        shown = await site.show(batch_id)
        assert (shown["status"], shown["expired_at"]) == ("expired", shown["created_at"] + 2 * 3600)
        assert shown["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        assert list(await site.results(shown["output_file_id"])) == ["line-1"]
        assert await site.results(shown["error_file_id"], "error") == {"line-2": EXPIRED}
        late = await site.start(line(3), window="1h")
        site.now_s += 3600
        site.runner.notice()
        await until(lambda: site.store.find_next_batch() is None)
        assert (await site.show(late))["status"] == "expired"
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    async def with_clock(site: Site) -> None:
        from chairlift.server.batches import api

        patch = pytest.MonkeyPatch()
        patch.setattr(api, "now_s", lambda: site.now_s)
        try:
            await work(site)
        finally:
            patch.undo()

    run(site, with_clock)


def test_a_batch_that_waits_for_another_is_cancelled_at_once(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        first, second = await site.start(line(2)), await site.start(line(3))
        working = asyncio.ensure_future(site.runner.run())
        await until(lambda: len(site.engine.submitted) == 1)
        cancelled = (await site.a.post(f"/v1/batches/{second}/cancel")).json()
        assert (cancelled["status"], cancelled["output_file_id"]) == ("cancelled", None)
        assert (await site.show(first))["status"] == "in_progress"
        assert (await site.a.post(f"/v1/batches/{first}/cancel")).json()["status"] == "cancelling"
        await until(lambda: site.store.find_next_batch() is None)
        assert (await site.show(first))["status"] == "cancelled"
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run(Site(tmp_path, StubEngine(script=Gate())), work)


def test_a_server_that_drains_records_no_error_and_waits_for_what_runs(tmp_path: Path) -> None:
    gate = Gate()
    site = Site(tmp_path, StubEngine(script=gate), BatchSettings(batch_concurrency=2))
    ids: list[str] = []

    async def drain(site: Site) -> None:
        ids.append(await site.start(*(line(number) for number in range(1, 6))))
        numbers = itertools.count()

        def refuse(_prompt: Sequence[int]) -> Exception | None:
            if next(numbers) < 3:
                return None
            site.engine.is_draining = True
            return DrainingError("no more")

        site.engine.refuse = refuse
        working = asyncio.ensure_future(site.runner.run())
        await until(lambda: site.engine.is_draining)
        assert not working.done()  # line 2 still runs
        gate.is_open.set()
        await asyncio.wait_for(working, 10)
        shown = await site.show(ids[0])
        assert (shown["status"], shown["request_counts"]["failed"]) == ("in_progress", 0)
        assert shown["request_counts"]["completed"] == 3

    async def go_on(site: Site) -> None:
        await site.work()
        shown = await site.show(ids[0])
        assert shown["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
        assert shown["error_file_id"] is None
        assert len(site.engine.submitted) == 2

    run(site, drain)
    run(Site(tmp_path), go_on)


def test_a_request_that_the_end_of_the_drain_cuts_off_is_sent_again(tmp_path: Path) -> None:
    gate = Gate(ending=ChoiceDelta(0, "", (), 0, 0, "abort"))
    gate.is_open.set()
    ids: list[str] = []

    async def cut_off(site: Site) -> None:
        ids.append(await site.start(line(1), line(2)))
        await asyncio.wait_for(site.runner.run(), 10)
        assert (await site.show(ids[0]))["request_counts"] == {"total": 2, "completed": 1, "failed": 0}

    async def go_on(site: Site) -> None:
        await site.work()
        assert (await site.show(ids[0]))["request_counts"] == {"total": 2, "completed": 2, "failed": 0}

    run(Site(tmp_path, StubEngine(script=gate)), cut_off)
    run(Site(tmp_path), go_on)


def test_a_fault_at_one_request_is_none_of_the_others(tmp_path: Path) -> None:
    def refuse(prompt: Sequence[int]) -> Exception | None:
        return ZeroDivisionError("a bug") if bytes(prompt) == b"p2" else None

    async def work(site: Site) -> None:
        batch_id = await site.start(line(1), line(2), line(3))
        await site.work()
        shown = await site.show(batch_id)
        assert (shown["status"], shown["request_counts"]) == ("completed", {"total": 3, "completed": 2, "failed": 1})
        failed = await site.results(shown["error_file_id"])
        assert failed["line-2"]["status_code"] == 500
        assert "a bug" not in json.dumps(failed)

    run(Site(tmp_path, StubEngine(refuse=refuse)), work)


def test_each_cap_names_what_is_there_the_limit_and_its_setting(tmp_path: Path) -> None:
    caps = BatchSettings(max_open_batches=1, max_batch_files=3, max_batch_storage_bytes=1000, max_batch_file_bytes=900)

    async def work(site: Site) -> None:
        def refused(answer: httpx.Response, status: int, *words: str) -> None:
            message = answer.json()["error"]["message"]
            assert answer.status_code == status, message
            assert not [word for word in words if word not in message], message

        refused(await post_file(site.a, b"x" * 901), 413, "901", "--max-batch-file-bytes is 900")
        first = await upload(site.a, line(1))
        assert (await create(site.a, first)).status_code == 200
        refused(await create(site.a, first), 429, "1 batches", "--max-open-batches is 1")
        refused(await site.a.delete(f"/v1/files/{first}"), 400, first, "has not ended")
        refused(await post_file(site.a, b"x" * 899), 400, "--max-batch-storage-bytes 1000", "899")
        second = await upload(site.a, b"x" * 100)
        await upload(site.a, b"x" * 100)
        refused(await post_file(site.a, b"x"), 400, "3 files", "--max-batch-files is 3")
        assert (await post_file(site.b, b"x" * 900)).status_code == 200
        assert (await site.a.delete(f"/v1/files/{second}")).json()["deleted"]
        await upload(site.a, b"x")

    run(Site(tmp_path, batch=caps), work)


def test_there_is_nothing_left_of_what_was_refused(tmp_path: Path) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n%s\r\n'
    purpose = head % b"purpose" + b"batch\r\n"
    bodies = {
        "no form": b"nothing",
        "no end": file % b"abc",
        "no file": purpose + b"--x--\r\n",
        "no purpose": file % b"abc" + b"--x--\r\n",
        "two files": file % b"abc" + file % b"def" + purpose + b"--x--\r\n",
        "the same field again": purpose + purpose + file % b"abc" + b"--x--\r\n",
        "many fields": b"".join(head % b"f%d" % number + b"\r\n" for number in range(100)) + b"--x--\r\n",
        "a long field": head % b"purpose" + b"b" * 10_000 + b"\r\n--x--\r\n",
        "a long header": b"--x\r\nA: " + b"b" * 60_000 + b"\r\n\r\n\r\n--x--\r\n",
        "many headers": b"--x\r\n" + b"A: b\r\n" * 10_000 + b"\r\n\r\n--x--\r\n",
    }

    async def work(site: Site) -> None:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        for name, body in bodies.items():
            answer = await site.a.post("/v1/files", content=body, headers=kind)
            assert answer.status_code == 400, name
        for other in ("application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 300):
            answer = await site.a.post("/v1/files", content=purpose, headers={"Content-Type": other})
            assert answer.status_code == 400
        assert list((tmp_path / "files").iterdir()) == []
        assert site.store.shelf("tenant a").num_bytes == 0
        good = file % b"abc" + purpose + b"--x--\r\n"

        async def byte_by_byte() -> AsyncIterator[bytes]:
            for place in range(len(good)):
                yield good[place : place + 1]

        answer = await site.a.post("/v1/files", content=byte_by_byte(), headers=kind)
        assert (answer.status_code, answer.json()["bytes"]) == (200, 3)
        assert (await site.a.get(f"/v1/files/{answer.json()['id']}/content")).content == b"abc"

    run(Site(tmp_path), work)


@pytest.mark.parametrize(
    ("written", "filename"),
    [
        ("filename*=UTF-8''na%C3%AFve%20one.jsonl", "naïve one.jsonl"),
        ("FileName* = iso-8859-1'de'%FCber.jsonl", "über.jsonl"),
        ("filename*=UTF-8''other.jsonl; filename=plain.jsonl", "plain.jsonl"),
        ("filename*=plain.jsonl", None),
        ("filename*=utf-7''%2BAOk-", None),
    ],
)
def test_a_filename_may_be_written_in_the_extended_form_alone(
    written: str, filename: str | None, tmp_path: Path
) -> None:
    body = (
        f'--x\r\nContent-Disposition: form-data; name="file"; {written}\r\n\r\nabc\r\n'
        '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    )

    async def work(site: Site) -> None:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = await site.a.post("/v1/files", content=body, headers=kind)
        if filename is None:
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
            return
        assert (answer.status_code, answer.json()["filename"], answer.json()["bytes"]) == (200, filename, 3)

    run(Site(tmp_path), work)


def test_an_upload_that_does_not_go_on_is_cut_off(tmp_path: Path) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"y" * 5000
        await asyncio.Event().wait()

    async def work(site: Site) -> None:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = await site.a.post("/v1/files", content=half(), headers=kind)
        assert answer.status_code == 408
        assert "--body-timeout" in answer.json()["error"]["message"]
        assert list((tmp_path / "files").iterdir()) == []
        assert site.store.shelf("tenant a").num_bytes == 0

    run(Site(tmp_path, connections=ConnectionSettings(body_timeout=0.05)), work)


def test_a_batch_ends_when_there_is_no_room_for_its_results(tmp_path: Path) -> None:
    content = [line(number, max_tokens=20) for number in range(1, 9)]
    num_bytes = len(b"\n".join(content))
    caps = BatchSettings(batch_concurrency=1, max_batch_storage_bytes=num_bytes + 500)

    async def work(site: Site) -> None:
        batch_id = await site.start(*content)
        await site.work()
        shown = await site.show(batch_id)
        assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", "storage_full")
        assert "--max-batch-storage-bytes" in shown["errors"]["data"][0]["message"]
        assert 0 < len(await site.results(shown["output_file_id"])) < 8
        before = site.store.shelf("tenant a").num_bytes
        assert BatchStore(tmp_path).shelf("tenant a").num_bytes == before

    run(Site(tmp_path, batch=caps), work)


def test_a_disk_that_takes_nothing_more_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_form: Form, _block: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work(site: Site) -> None:
        with monkeypatch.context() as full:
            full.setattr(Form, "write", write)
            answer = await post_file(site.a, b"x")
        assert answer.status_code == 507
        assert "No space left on device" in answer.json()["error"]["message"]
        assert list((tmp_path / "files").iterdir()) == []
        await upload(site.a, b"x")

    run(Site(tmp_path), work)


def test_a_batch_goes_on_when_the_disk_works_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rests, "FIRST_PAUSE_S", 0.0)
    faults = [OSError(errno.ENOSPC, "No space left on device")] * 2
    append = store.append

    def fail_at_first(path: Path, result: bytes) -> None:
        if faults:
            with path.open("ab") as file:
                file.write(result[:10])  # what a full disk leaves
            raise faults.pop()
        append(path, result)

    monkeypatch.setattr(store, "append", fail_at_first)

    async def work(site: Site) -> None:
        batch_id = await site.start(line(1), line(2), line(3))
        await site.work()
        shown = await site.show(batch_id)
        assert shown["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert sorted(await site.results(shown["output_file_id"])) == ["line-1", "line-2", "line-3"]

    run(Site(tmp_path, batch=BatchSettings(batch_concurrency=1)), work)


def test_a_batch_takes_no_place_of_those_that_its_key_has(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        await site.start(line(2))
        working = asyncio.ensure_future(site.runner.run())
        await until(lambda: len(site.engine.submitted) == 1)
        answer = await site.a.post(ENDPOINT, json={"prompt": "p1", "max_tokens": 2})
        assert answer.status_code == 200
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run(Site(tmp_path, StubEngine(script=Gate()), limits=LimitSettings(max_concurrent_requests=1)), work)


def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        ids = [await upload(site.a, b"x" * number) for number in range(5)]
        await site.start(line(1))
        for path, wanted, too_many in (("/v1/files", 6, "10001"), ("/v1/batches", 1, "1001")):
            read: list[str] = []
            after: dict[str, str] = {}
            while True:
                page = (await site.a.get(path, params={"limit": "2", **after})).json()
                read += [one["id"] for one in page["data"]]
                assert page["last_id"] == read[-1]
                if not page["has_more"]:
                    break
                after = {"after": page["last_id"]}
            assert len(set(read)) == len(read) == wanted
            if path == "/v1/files":
                assert read[1:] == ids[::-1]
            for wrong in ({"limit": "0"}, {"limit": "x"}, {"limit": too_many}, {"after": "nothing"}):
                assert (await site.a.get(path, params=wrong)).status_code == 400

    run(Site(tmp_path), work)


def test_only_the_newest_batches_that_ended_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "MAX_ENDED_BATCHES", 2)

    async def work(site: Site) -> None:
        ids = [await site.start(line(number)) for number in range(4)]
        for batch_id in ids:
            await site.a.post(f"/v1/batches/{batch_id}/cancel")
        listed = [batch["id"] for batch in (await site.a.get("/v1/batches")).json()["data"]]
        assert sorted(listed) == sorted(ids[2:])
        assert len(list((tmp_path / "batches").iterdir())) == 2

    run(Site(tmp_path), work)
