"""Lists of files and batches: their order, also within a second and after a restart, and what they leave out."""

import json
from pathlib import Path
from typing import Any

from chairlift.server.batches import api, store
from chairlift.server.batches.objects import FileObject, StoredFile
from tests.unit.server.test_batches import Site, line, run, upload

NUM = 12


async def ids(site: Site, path: str, **params: Any) -> list[str]:
    answer = await site.a.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["data"]]


def test_what_came_within_a_second_keeps_its_order_through_a_restart(tmp_path: Path, monkeypatch: Any) -> None:
    seconds = iter([7] * (2 * NUM) + [6] * (2 * NUM))  # a clock that was set back is no reason either
    for module in (api, store):
        monkeypatch.setattr(module, "now_s", lambda: next(seconds))
    files: list[str] = []
    batches: list[str] = []

    async def make(site: Site) -> None:
        for number in range(NUM):
            batch_id = await site.start(line(number))
            files.insert(0, (await site.show(batch_id))["input_file_id"])
            batches.insert(0, batch_id)
        for batch_id in batches[2::3]:
            await site.a.post(f"/v1/batches/{batch_id}/cancel")
        await check(site)

    async def check(site: Site) -> None:
        assert await ids(site, "/v1/files") == files
        assert await ids(site, "/v1/batches") == batches
        following = site.store.find_next_batch()
        assert following is not None
        assert following.batch.id == [one for one in batches if one not in batches[2::3]][-1]

    async def make_more(site: Site) -> None:
        await check(site)
        batch_id = await site.start(line(99))
        files.insert(0, (await site.show(batch_id))["input_file_id"])
        assert await ids(site, "/v1/batches") == [batch_id, *batches]
        assert await ids(site, "/v1/files") == files

    run(Site(tmp_path), make)
    run(Site(tmp_path), make_more)


def test_what_was_kept_before_there_were_numbers_is_older(tmp_path: Path) -> None:
    old: list[str] = []

    async def make(site: Site) -> None:
        old.extend([await upload(site.a, b"x"), await upload(site.a, b"y")])

    async def make_more(site: Site) -> None:
        new = await upload(site.a, b"z")
        assert await ids(site, "/v1/files") == [new, *sorted(old, reverse=True)]

    run(Site(tmp_path), make)
    for path in (tmp_path / "files").glob("*.json"):
        stored = json.loads(path.read_bytes())
        del stored["number"]
        stored["file"]["created_at"] = 5
        path.write_text(json.dumps(stored))
    run(Site(tmp_path), make_more)


def test_a_page_of_files_is_as_long_as_openais(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        await upload(site.a, b"x")
        files = site.store.shelf("tenant a").files
        for number in range(2, 10_002):
            file = FileObject(id=f"file-{number}", bytes=1, created_at=0, filename="f", purpose="batch")
            files[file.id] = StoredFile("tenant a", file, number)
        assert await ids(site, "/v1/files", limit="10000") == await ids(site, "/v1/files")
        (oldest,) = await ids(site, "/v1/files", after="file-2")
        assert oldest not in await ids(site, "/v1/files", limit="10000")

    run(Site(tmp_path), work)


def test_files_are_listed_by_purpose_and_in_either_order(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        batch_ids = [await site.start(line(number)) for number in range(3)]
        await site.work()
        made = [await site.show(batch_id) for batch_id in batch_ids]
        inputs, outputs = [one["input_file_id"] for one in made], [one["output_file_id"] for one in made]
        assert await ids(site, "/v1/files", order="asc") == inputs + outputs
        assert await ids(site, "/v1/files", order="desc") == await ids(site, "/v1/files") == (inputs + outputs)[::-1]
        assert await ids(site, "/v1/files", purpose="batch", order="asc") == inputs
        assert await ids(site, "/v1/files", purpose="batch_output") == outputs[::-1]
        assert await ids(site, "/v1/files", purpose="fine-tune") == []
        page = (await site.a.get("/v1/files", params={"purpose": "batch", "order": "asc", "limit": "2"})).json()
        assert ([one["id"] for one in page["data"]], page["has_more"]) == (inputs[:2], True)
        assert await ids(site, "/v1/files", purpose="batch", order="asc", limit="2", after=inputs[1]) == inputs[2:]
        wrong = await site.a.get("/v1/files", params={"order": "newest"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "order")

    run(Site(tmp_path), work)
