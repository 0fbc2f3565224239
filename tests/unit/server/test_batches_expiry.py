"""Files that are kept for a time only: which times there are, when they end, and that no batch loses its input."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.server.batches.expiry import FileExpiry
from tests.unit.server.stub_engine import StubEngine
from tests.unit.server.test_batches import ENDPOINT, Gate, Site, line, run, until

HOUR_S = 3600
DAY_S = 24 * HOUR_S


async def post(site: Site, seconds: object = HOUR_S, anchor: str = "created_at") -> httpx.Response:
    fields = {"purpose": "batch", "expires_after[anchor]": anchor, "expires_after[seconds]": str(seconds)}
    return await site.a.post("/v1/files", files={"file": ("f.jsonl", line(1))}, data=fields)


async def kept(site: Site, file_id: str) -> bool:
    return (await site.a.get(f"/v1/files/{file_id}")).status_code == 200


async def start(site: Site, file_id: str, seconds: int | None = None) -> str:
    body: dict[str, Any] = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "48h"}
    if seconds is not None:
        body["output_expires_after"] = {"anchor": "created_at", "seconds": seconds}
    made = await site.a.post("/v1/batches", json=body)
    assert made.status_code == 200, made.text
    return made.json()["id"]


def test_a_file_is_deleted_when_its_time_is_over_and_not_before(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []

    async def upload(site: Site) -> None:
        found.extend([(await post(site, seconds)).json() for seconds in (HOUR_S, DAY_S)])
        assert [file["expires_at"] - file["created_at"] for file in found] == [HOUR_S, DAY_S]

    async def expire(site: Site) -> None:
        soon, late = found
        shelf = site.store.shelf("tenant a")
        assert (await site.a.get("/v1/files?order=asc")).json()["data"] == found
        expiry = FileExpiry(site.store, lambda: site.now_s)
        site.now_s = soon["expires_at"] - 1
        await expiry.delete_due()
        assert await kept(site, soon["id"])
        site.now_s += 1
        await expiry.delete_due()
        assert (await kept(site, soon["id"]), await kept(site, late["id"])) == (False, True)
        assert (await site.a.get(f"/v1/files/{soon['id']}/content")).status_code == 404
        assert shelf.num_bytes == late["bytes"]
        assert {path.stem for path in (tmp_path / "files").iterdir()} == {late["id"]}

    run(Site(tmp_path), upload)
    run(Site(tmp_path), expire)  # after a restart


def test_the_end_of_a_files_time_is_noticed_by_itself(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        site.now_s = 10**11
        working = asyncio.ensure_future(site.runner.run())
        await asyncio.sleep(0)  # it looks before there is a file
        file_id = (await post(site)).json()["id"]
        await until(lambda: file_id not in site.store.shelf("tenant a").files)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run(Site(tmp_path), work)


def test_no_batch_loses_its_input_and_results_have_a_time_of_their_own(tmp_path: Path) -> None:
    gate = Gate()

    async def work(site: Site) -> None:
        given = (await post(site)).json()
        batch_id = await start(site, given["id"], DAY_S)
        endless_id = await start(site, given["id"])
        expiry = FileExpiry(site.store, lambda: given["expires_at"])
        await expiry.delete_due()
        assert await kept(site, given["id"])
        gate.is_open.set()
        await site.work()
        await expiry.delete_due()
        assert not await kept(site, given["id"])
        answers = (await site.show(batch_id))["output_file_id"]
        file = (await site.a.get(f"/v1/files/{answers}")).json()
        assert file["expires_at"] == file["created_at"] + DAY_S
        endless = (await site.show(endless_id))["output_file_id"]
        assert (await site.a.get(f"/v1/files/{endless}")).json()["expires_at"] is None
        await FileExpiry(site.store, lambda: 10**11).delete_due()
        assert (await kept(site, answers), await kept(site, endless)) == (False, True)

    run(Site(tmp_path, StubEngine(script=gate)), work)


@pytest.mark.parametrize(
    ("seconds", "anchor", "param"),
    [
        (HOUR_S - 1, "created_at", "expires_after.seconds"),
        (30 * DAY_S + 1, "created_at", "expires_after.seconds"),
        ("soon", "created_at", "expires_after.seconds"),
        (HOUR_S, "last_active_at", "expires_after.anchor"),
    ],
)
def test_times_that_there_are_not_are_refused_by_name(tmp_path: Path, seconds: object, anchor: str, param: str) -> None:
    async def work(site: Site) -> None:
        refused = await post(site, seconds, anchor)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        half = {"purpose": "batch", "expires_after[seconds]": "3600"}
        refused = await site.a.post("/v1/files", files={"file": ("f.jsonl", line(1))}, data=half)
        assert refused.json()["error"]["param"] == "expires_after.anchor"
        assert site.store.shelf("tenant a").num_bytes == 0
        wrong = {"anchor": "created_at", "seconds": 1}
        body = {"input_file_id": "f", "endpoint": ENDPOINT, "completion_window": "1h", "output_expires_after": wrong}
        refused = await site.a.post("/v1/batches", json=body)
        assert refused.json()["error"]["param"] == "output_expires_after.seconds"

    run(Site(tmp_path), work)
