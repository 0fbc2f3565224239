"""Keys, tenants and tiers: who is let in, whom a request counts for, and what it may ask for."""

from typing import Any

import pytest
from starlette.datastructures import Headers

from chairlift.config.resolved import TenantConfig, TenantTable
from chairlift.config.sections import ServerSettings, TenancySettings
from chairlift.config.tenants import TenantKey, Tenants
from chairlift.engine.terms import Terms
from chairlift.errors import ConfigurationError
from chairlift.server.access import ANYBODY, Access, Caller, KeyRing
from tests.unit.server.stub_engine import StubEngine, post, request

TABLE = TenantTable(
    by_name={"search": TenantConfig(most_urgent_tier=-2), "batch": TenantConfig(most_urgent_tier=4)},
    default=TenantConfig(most_urgent_tier=1),
)
TENANTS = Tenants(table=TABLE, keys=(TenantKey("search", "sk-search"), TenantKey("batch", "sk-bätch")))
ADMIN = TenancySettings(admin_api_key="sk-admin")


def bearer(key: str) -> dict:
    return {"Authorization": f"Bearer {key}".encode()}


def ask(access: Access, *, key: str | None = None, headers: dict | None = None, **body: Any) -> object:
    """Terms of a completion request, or the status with which it was refused."""
    engine = StubEngine(tenants=TABLE)
    sent = {**(bearer(key) if key else {}), **(headers or {})}
    response = post("/v1/completions", {"prompt": "x", **body}, engine=engine, access=access, headers=sent)
    return engine.submitted[0]["terms"] if response.status_code == 200 else response.status_code


def terms(access: Access, **arguments: Any) -> Terms:
    found = ask(access, **arguments)
    assert isinstance(found, Terms)
    return found


def test_a_key_names_its_tenant_and_bounds_its_tier() -> None:
    access = Access(ServerSettings(api_key="sk-plain"), tenants=TENANTS)
    assert (terms(access, key="sk-search").tenant, terms(access, key="sk-bätch").tenant) == ("search", "batch")
    asked = [(key, priority, terms(access, key=key, priority=priority).priority)
             for key, priority in (("sk-search", -9), ("sk-search", 0), ("sk-search", 7), ("sk-bätch", None),
                                   ("sk-bätch", 5), ("sk-plain", -1))]  # fmt: skip
    assert [given for _, _, given in asked] == [-2, 0, 7, 4, 5, 1]
    assert terms(access, key="sk-plain").tenant == ""
    assert ask(access, key="sk-none") == ask(access) == 401


def test_a_key_may_end_in_any_letter() -> None:
    """In Latin-1, the last byte of this one is white space."""
    assert terms(Access(ServerSettings(api_key="sk-voilà")), key="sk-voilà").tenant == ""


def test_without_a_tenants_file_no_priority_is_below_zero() -> None:
    engine = StubEngine()
    post("/v1/completions", {"prompt": "x", "priority": -5}, engine=engine)
    assert engine.submitted[0]["terms"].priority == 0


def test_user_and_header_name_tenants_only_where_they_are_trusted() -> None:
    plain = Access(ServerSettings(), tenants=TENANTS)
    assert plain.needs_key
    keyless = Tenants(table=TABLE)
    open_access = Access(ServerSettings(), TenancySettings(), keyless)
    named = {"headers": {"X-Tenant": "batch"}, "user": "someone"}
    assert terms(open_access, **named).tenant == ""
    trusting = Access(
        ServerSettings(), TenancySettings(trust_user=True, tenant_header="x-tenant"), Tenants(table=TABLE)
    )
    assert terms(trusting, **named).tenant == "batch"
    assert terms(trusting, **named).priority == 4
    assert terms(trusting, user="someone").tenant == "someone"
    assert terms(trusting, user="").tenant == terms(trusting).tenant == ""


def test_a_key_that_names_a_tenant_wins_over_user_and_header() -> None:
    access = Access(ServerSettings(), TenancySettings(trust_user=True, tenant_header="X-Tenant"), TENANTS)
    assert terms(access, key="sk-search", user="batch", headers={"X-Tenant": "batch"}).tenant == "search"


@pytest.mark.parametrize("header", ["", "a b", "x-tenant:", "ä"])
def test_a_header_that_nobody_could_send_is_refused_at_start(header: str) -> None:
    with pytest.raises(ConfigurationError, match="--tenant-header"):
        Access(ServerSettings(), TenancySettings(tenant_header=header))


def test_user_cannot_borrow_a_tenant_that_has_a_key() -> None:
    access = Access(ServerSettings(api_key="sk-plain"), TenancySettings(trust_user=True), TENANTS)
    assert ask(access, key="sk-plain", user="search") == 400
    assert terms(access, key="sk-plain", user="searching").tenant == "searching"


@pytest.mark.parametrize("name", ["x" * 129, "a\nb", "\u200b"])
def test_a_name_that_could_not_be_shown_is_refused(name: str) -> None:
    access = Access(ServerSettings(), TenancySettings(trust_user=True))
    assert ask(access, user=name) == 400


def test_keys_are_in_no_representation_of_the_rules() -> None:
    access = Access(ServerSettings(api_key="sk-plain"), ADMIN, TENANTS)
    shown = repr(vars(access)) + repr(vars(access._keys)) + repr(ServerSettings(api_key="sk-plain")) + repr(ADMIN)
    assert not any(key in shown for key in ("sk-plain", "sk-search", "sk-admin"))


def test_a_ring_finds_whole_keys_only() -> None:
    ring = KeyRing([("secret", Caller(1, "a"))])
    assert ring.find(b"secret") == Caller(1, "a")
    assert [ring.find(token) for token in (b"", b"secre", b"secrets", b"Secret", b"x" * 10**6)] == [None] * 5


@pytest.mark.parametrize(
    ("server", "tenancy", "said"),
    [
        (ServerSettings(api_key=""), TenancySettings(), "--api-key must not be empty"),
        (ServerSettings(), TenancySettings(admin_api_key=""), "--admin-api-key must not be empty"),
        (ServerSettings(api_key="k1"), TenancySettings(admin_api_key="k1"), "must differ from --api-key"),
        (ServerSettings(api_key="sk-search"), TenancySettings(), r"--api-key is also a key of \[tenants.search\]"),
        (ServerSettings(), TenancySettings(admin_api_key="sk-search"), "--admin-api-key is also a key"),
    ],
)
def test_one_key_has_one_purpose(server: ServerSettings, tenancy: TenancySettings, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        Access(server, tenancy, TENANTS)
    assert "sk-search" not in caught.value.message


@pytest.mark.parametrize("path", ["/admin/scheduler", "/v1/requests"])
def test_administration_is_off_without_its_key_and_needs_exactly_it(path: str) -> None:
    off = request("GET", path, access=Access(ServerSettings()))
    assert (off.status_code, "--admin-api-key" in off.text) == (404, True)
    access = Access(ServerSettings(api_key="sk-plain"), ADMIN, TENANTS)
    for headers in ({}, bearer("sk-plain"), bearer("sk-search"), bearer("sk-admi"), {"Authorization": "sk-admin"}):
        response = request("GET", path, access=access, headers=headers)
        assert response.status_code == 401
        assert "sk-" not in response.text
    assert request("GET", path, access=access, headers=bearer("sk-admin")).status_code == 200


def test_the_administrator_s_key_opens_nothing_else() -> None:
    access = Access(ServerSettings(api_key="sk-plain"), ADMIN)
    assert request("GET", "/v1/models", access=access, headers=bearer("sk-admin")).status_code == 401
    assert request("GET", "/v1/models", access=access, headers=bearer("sk-plain")).status_code == 200


def test_where_no_key_is_needed_any_key_is_fine_and_none_is_somebody() -> None:
    access = Access(ServerSettings(), ADMIN)
    assert access.find_caller(Headers({"Authorization": "Bearer whatever"})) is ANYBODY
    assert access.find_admin(Headers({})) is None
