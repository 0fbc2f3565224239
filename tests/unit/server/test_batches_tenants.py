"""Whose files and batches are: the tenant's that a key or a trusted header names, as for every other request."""

import asyncio
from pathlib import Path

import httpx
import pytest

from chairlift.config.sections import BatchSettings, ServerSettings, TenancySettings
from chairlift.config.tenants import TenantKey, Tenants
from tests.unit.server.stub_engine import StubEngine
from tests.unit.server.test_batches import ENDPOINT, Gate, Site, create, line, post_file, run, until, upload

HEADERS = ({"X-Tenant": "alice"}, {"X-Tenant": "bob"})
NOBODY = Tenants()


def behind_a_proxy(folder: Path, engine: StubEngine | None = None, batch: BatchSettings | None = None) -> Site:
    tenancy = TenancySettings(tenant_header="X-Tenant", trust_user=True)
    return Site(
        folder,
        engine or StubEngine(),
        batch or BatchSettings(),
        tenancy=tenancy,
        tenants=NOBODY,
        headers=HEADERS,
    )


def test_tenants_that_a_proxy_names_see_nothing_of_each_other(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        batch_id = (await create(site.a, file_id)).json()["id"]
        for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"):
            assert (await site.b.get(path)).status_code == 404
            assert (await site.a.get(path)).status_code == 200
        assert (await site.b.delete(f"/v1/files/{file_id}")).status_code == 404
        assert (await site.b.post(f"/v1/batches/{batch_id}/cancel")).status_code == 404
        assert (await create(site.b, file_id)).status_code == 404
        await site.work()
        for path, num_of_a in (("/v1/files", 2), ("/v1/batches", 1)):
            assert len((await site.a.get(path)).json()["data"]) == num_of_a
            for others in ("bob", "", "Alice", "alice2"):
                assert (await site.b.get(path, headers={"X-Tenant": others})).json()["data"] == []

    async def after_a_restart(site: Site) -> None:
        assert len((await site.a.get("/v1/files")).json()["data"]) == 2
        assert (await site.b.get("/v1/files")).json()["data"] == []

    run(behind_a_proxy(tmp_path), work)
    run(behind_a_proxy(tmp_path), after_a_restart)


def test_lines_run_as_the_tenant_that_the_proxy_names(tmp_path: Path) -> None:
    async def leave_undone(site: Site) -> None:
        await site.start(line(1), line(2), line(3, user="bob"))
        working = asyncio.ensure_future(site.runner.run())
        await until(lambda: len(site.engine.submitted) == 3)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert {sent["terms"].tenant for sent in site.engine.submitted} == {"alice"}

    async def go_on(site: Site) -> None:
        await site.work()
        assert {sent["terms"].tenant for sent in site.engine.submitted} == {"alice"}

    run(behind_a_proxy(tmp_path, StubEngine(script=Gate())), leave_undone)
    run(behind_a_proxy(tmp_path), go_on)


def test_each_tenant_that_a_proxy_names_has_its_own_caps(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        assert (await post_file(site.a, line(1))).status_code == 400
        assert (await create(site.b, await upload(site.b, line(1)))).status_code == 400
        assert (await post_file(site.b, line(1))).status_code == 400
        assert (await site.a.delete(f"/v1/files/{file_id}")).status_code == 200
        await upload(site.a, line(1))

    run(behind_a_proxy(tmp_path, batch=BatchSettings(max_batch_files=1)), work)


def test_a_tenant_with_a_key_of_its_own_is_the_same_by_both_ways(tmp_path: Path) -> None:
    """And a key that names a tenant wins over the header."""
    site = Site(
        tmp_path,
        tenancy=TenancySettings(tenant_header="X-Tenant"),
        tenants=Tenants(keys=(TenantKey("a", "sk-a"), TenantKey("b", "sk-b"))),
        headers=({"Authorization": "Bearer sk-a"}, {"Authorization": "Bearer sk-b", "X-Tenant": "a"}),
    )

    async def work(site: Site) -> None:
        file_id = await upload(site.a, line(1))
        assert (await site.b.get(f"/v1/files/{file_id}")).status_code == 404

    run(site, work)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/files/file-0", "/v1/files/file-0/content"])
def test_a_name_that_no_tenant_can_have_is_refused_as_everywhere(path: str, tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        wrong = {"X-Tenant": "x" * 129}
        answers = [
            await site.a.get(path, headers=wrong),
            await site.a.post(ENDPOINT, json={"prompt": "p"}, headers=wrong),
        ]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert answers[0].json() == answers[1].json()

    run(behind_a_proxy(tmp_path), work)


def test_lines_may_name_their_tenant_where_user_is_trusted_and_nobody_else_does(tmp_path: Path) -> None:
    site = Site(tmp_path, tenancy=TenancySettings(trust_user=True), tenants=NOBODY, headers=({}, {}))

    async def work(site: Site) -> None:
        await site.start(line(1, user="carol"), line(2))
        await site.work()
        assert sorted(sent["terms"].tenant for sent in site.engine.submitted) == ["", "carol"]
        assert len((await site.b.get("/v1/batches")).json()["data"]) == 1

    run(site, work)


def test_users_that_are_named_in_the_address_see_nothing_of_each_other(tmp_path: Path) -> None:
    tenants = Tenants(keys=(TenantKey("keyed", "sk-keyed"),))
    site = Site(
        tmp_path,
        tenancy=TenancySettings(trust_user=True),
        tenants=tenants,
        server=ServerSettings(api_key="sk"),
        headers=({"Authorization": "Bearer sk"}, {"Authorization": "Bearer sk-keyed"}),
    )

    async def work(site: Site) -> None:
        for client in (site.a, site.b):
            client.params = {"user": "carol"}
        file_id = await upload(site.a, line(1, user="dave"))
        batch_id = (await create(site.a, file_id)).json()["id"]
        await site.work()
        assert {sent["terms"].tenant for sent in site.engine.submitted} == {"carol"}
        assert (await site.a.get(f"/v1/batches/{batch_id}")).json()["status"] == "completed"
        for params in ({"user": "dave"}, {"user": ""}):
            site.a.params = params
            assert await seen(site.a, file_id, batch_id) == (0, 0, 404, 404, 404, 404, 404)
        assert await seen(site.b, file_id, batch_id) == (0, 0, 404, 404, 404, 404, 404)
        site.a.params = {"user": "keyed"}
        assert await seen(site.a, file_id, batch_id) == (400,) * 7
        site.a.params = {"user": "carol"}
        assert (await seen(site.a, file_id, batch_id))[:2] == (2, 1)

    async def untrusted(site: Site) -> None:
        assert len((await site.a.get("/v1/files", params={"user": "carol"})).json()["data"]) == 0

    run(site, work)
    site.tenancy = None
    run(site, untrusted)


async def seen(client: httpx.AsyncClient, file_id: str, batch_id: str) -> tuple[int, ...]:
    """How much the lists show, or their status; and the status of everything that names a file or a batch."""
    lists = [await client.get("/v1/files"), await client.get("/v1/batches")]
    others = [
        await client.get(f"/v1/files/{file_id}"),
        await client.get(f"/v1/files/{file_id}/content"),
        await client.get(f"/v1/batches/{batch_id}"),
        await client.post(f"/v1/batches/{batch_id}/cancel"),
        await create(client, file_id),
    ]
    shown = [len(one.json()["data"]) if one.status_code == 200 else one.status_code for one in lists]
    return (*shown, *(one.status_code for one in others))


def test_whoever_keeps_nothing_takes_no_memory_by_asking(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        for number in range(20):
            await site.a.get("/v1/files", headers={"X-Tenant": f"t{number}"})
        assert not site.store._shelves

    run(behind_a_proxy(tmp_path), work)
