import pytest
from starlette.datastructures import Headers

from chairlift.config.sections import ConnectionSettings, ServerSettings, TenancySettings
from chairlift.errors import ConfigurationError
from chairlift.server.access import Access
from chairlift.server.app import create_app
from chairlift.server.context import WebSections
from chairlift.server.origins import OriginRefusedError, OriginRules
from tests.unit.server.stub_engine import StubEngine, request


def is_allowed(rules: OriginRules, **headers: str) -> bool:
    try:
        rules.check(Headers(headers))
    except OriginRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "192.168.1.5", "app.localhost", ""],
)
def test_on_loopback_its_own_names_and_addresses_are_answered(host: str) -> None:
    assert is_allowed(OriginRules("127.0.0.1"), host=host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evil", "a:b"]
)
def test_on_loopback_other_names_are_rebinding(host: str) -> None:
    assert not is_allowed(OriginRules("127.0.0.1"), host=host)
    assert not is_allowed(OriginRules("localhost"), host=host)


def test_elsewhere_names_are_checked_if_they_are_listed() -> None:
    assert is_allowed(OriginRules("0.0.0.0"), host="chairlift:8000")
    listed = OriginRules("0.0.0.0", "api.example, *.internal")
    assert is_allowed(listed, host="api.example:443")
    assert is_allowed(listed, host="a.b.internal")
    assert is_allowed(listed, host="10.0.0.7")
    assert not is_allowed(listed, host="internal")
    assert not is_allowed(listed, host="evil.example")
    assert is_allowed(OriginRules("127.0.0.1", "*"), host="evil.example")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:3000", "http://[", "", "file://", "localhost:8000"]
)
def test_pages_of_others_may_not_send_requests(origin: str) -> None:
    assert not is_allowed(OriginRules("127.0.0.1"), host="localhost:8000", origin=origin)
    assert not is_allowed(OriginRules("0.0.0.0"), host="localhost:8000", origin=origin)
    assert is_allowed(OriginRules("127.0.0.1", None, "*"), host="localhost:8000", origin=origin)


def test_its_own_pages_and_listed_ones_may() -> None:
    rules = OriginRules("127.0.0.1", None, "https://app.example/, http://localhost:3000")
    for origin in ("http://localhost:8000", "https://app.example", "http://localhost:3000"):
        assert is_allowed(rules, host="localhost:8000", origin=origin)
    assert not is_allowed(rules, host="localhost:8000", origin="http://app.example")


@pytest.mark.parametrize("origins", ["app.example", "https://app.example/path", "https://", "http://["])
def test_what_is_no_origin_is_refused_at_start(origins: str) -> None:
    with pytest.raises(ConfigurationError, match="--allowed-origins"):
        create_app(
            StubEngine(),
            ServerSettings(),
            sections=WebSections(connections=ConnectionSettings(allowed_origins=origins)),
        )


def test_cors_is_off_unless_asked_for() -> None:
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (
        request("OPTIONS", "/v1/completions", headers=preflight),
        request("GET", "/version", headers={"Origin": "https://evil.example"}),
    ):
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not [n for n in request("GET", "/version").headers if n.startswith("access-control")]


def test_salts_stay_within_their_tenant_if_asked_for() -> None:
    shared = Access(ServerSettings())
    assert [shared.cache_salt_of("a", None), shared.cache_salt_of("a", "s")] == [None, "s"]
    apart = Access(ServerSettings(), TenancySettings(isolate_prefix_cache=True))
    salts = {apart.cache_salt_of(tenant, salt) for tenant in ("", "a", "b") for salt in (None, "a", "s")}
    assert len(salts) == 9
    assert None not in salts
