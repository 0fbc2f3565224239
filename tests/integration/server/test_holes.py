"""The known holes of comparable servers, each tried over HTTP; others are in tests/unit/server/test_validation.py."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.server.raw_http import RawConnection
from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"
TENANTS = """
[tenants.a]
keys = ["sk-a"]
[tenants.b]
keys = ["sk-b"]
"""
PAGE = "https://app.example"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tenants: Path = tmp_path_factory.mktemp("guarded") / "tenants.toml"
    tenants.write_text(TENANTS)
    flags = ("--tenants", str(tenants), "--isolate-prefix-cache", "--allowed-origins", PAGE)
    with ServerProcess(*flags, "--log-level", "debug", env={"CHAIRLIFT_ADMIN_API_KEY": "sk-admin"}) as process:
        yield process
        everything = "\n".join(process.log)
        assert not [key for key in ("sk-a", "sk-b", "sk-admin") if key in everything]
        assert "Traceback" not in everything


def raw(server: ServerProcess, path: str, *headers: str, method: str = "GET", host: str | None = None) -> int:
    with RawConnection(server) as connection:
        if host is not None:
            connection.host = host
        connection.send_head(path, *headers, "Connection: close", method=method)
        return int(connection.read_to_end().split(b" ", 2)[1])


def test_a_name_that_was_made_to_point_here_is_not_answered(server: ServerProcess) -> None:
    for path in ("/version", "/metrics", "/v1/models", "/docs"):
        assert raw(server, path, host="evil.example:8000") == 403
        assert raw(server, path, host="localhost") == 200


def test_a_page_cannot_send_requests_without_asking(server: ServerProcess) -> None:
    body = '{"prompt": "x", "max_tokens": 1}'
    simple = {"Origin": "https://evil.example", "Content-Type": "text/plain"}  # what a page may send without asking
    assert httpx.post(server.url + COMPLETIONS, content=body, headers=simple).status_code == 403


def test_a_listed_page_may_use_the_server_with_a_key(guarded: ServerProcess) -> None:
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    preflight = httpx.options(guarded.url + COMPLETIONS, headers=asked)
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
    headers = {"Origin": PAGE, "Authorization": "Bearer sk-a"}
    answer = httpx.post(guarded.url + COMPLETIONS, json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert httpx.post(guarded.url + COMPLETIONS, json={"prompt": "x"}, headers={"Origin": PAGE}).status_code == 401
    assert httpx.options(guarded.url + COMPLETIONS, headers={**asked, "Origin": "https://evil"}).status_code in (
        400,
        403,
    )


def test_tenants_do_not_see_in_the_cache_what_others_asked(guarded: ServerProcess) -> None:
    def cached_tokens(key: str, **fields: object) -> int:
        body = {"prompt": "what a tenant asks, long enough for pages " * 8, "max_tokens": 1, **fields}
        answer = httpx.post(guarded.url + COMPLETIONS, json=body, headers={"Authorization": f"Bearer {key}"})
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached_tokens("sk-a") == 0
    assert cached_tokens("sk-a") > 0
    assert cached_tokens("sk-b") == 0
    assert cached_tokens("sk-b", cache_salt="a") == 0
    assert cached_tokens("sk-a", cache_salt="b") == 0
    assert cached_tokens("sk-b") > 0


def test_a_server_for_everybody_says_so_loudly(server: ServerProcess, guarded: ServerProcess, tmp_path: Path) -> None:
    """And which settings have no effect, and what users share."""
    flags = ("--model", "some/model", "--trust-user", "--batch-dir", str(tmp_path))
    with ServerProcess("--host", "0.0.0.0", "--log-level", "warning", *flags) as open_to_all:
        assert httpx.get(open_to_all.url + "/v1/models").status_code == 200
    without_effect, warned, shared = [line for line in open_to_all.log if " WARNING " in line]
    assert "--model has no effect: --executor fake" in without_effect
    assert "/v1/files?user=NAME" in shared
    assert "NO API KEY IS NEEDED" in warned
    assert "other machines can reach 0.0.0.0" in warned
    assert "CHAIRLIFT_API_KEY" in warned
    for quiet in (server, guarded):
        assert not any("NO API KEY" in line or "no effect" in line or "?user=" in line for line in quiet.log)


@pytest.mark.parametrize("path", ["/admin/scheduler", "/v1/requests"])
def test_administration_is_off_or_needs_its_own_key(path: str, server: ServerProcess, guarded: ServerProcess) -> None:
    assert httpx.get(server.url + path).status_code == 404
    assert httpx.get(guarded.url + path).status_code == 401
    assert httpx.get(guarded.url + path, headers={"Authorization": "Bearer sk-a"}).status_code == 401
    assert httpx.get(guarded.url + path, headers={"Authorization": "Bearer sk-admin"}).status_code == 200
    for escape in ("/%61dmin/scheduler", "//admin/scheduler", "/v1/../admin/scheduler", "/admin%2fscheduler"):
        assert raw(guarded, escape, "Authorization: Bearer sk-a") in (401, 404)


def test_b23_the_prefix_cache_is_reset_only_while_nobody_uses_it(server: ServerProcess, guarded: ServerProcess) -> None:
    path, admin, key = "/reset_prefix_cache", {"Authorization": "Bearer sk-admin"}, {"Authorization": "Bearer sk-a"}
    assert httpx.post(server.url + path).status_code == 404
    assert httpx.post(guarded.url + path, headers=key).status_code == 401
    prompts = {"decoding": "short", "in chunks": "a long prompt in many chunks " * 60}
    bodies = {
        name: {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
        for (name, prompt), num_tokens in zip(prompts.items(), (1500, 100), strict=True)
    }
    with httpx.Client(base_url=guarded.url, headers=key, timeout=60) as client:
        before = {name: client.post(COMPLETIONS, json=body).json() for name, body in bodies.items()}
        assert client.post(path, headers=admin).json() == {"is_reset": True}
        with client.stream("POST", COMPLETIONS, json={**bodies["decoding"], "stream": True}) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            refused = client.post(path, headers=admin)
            assert (refused.status_code, refused.json()["error"]["type"]) == (409, "invalid_request_error")
            text = "".join(
                json.loads(line[6:])["choices"][0]["text"] for line in [first, *lines] if line.startswith("data: {")
            )
        assert before["decoding"]["choices"][0]["text"] == text
        long = client.post(COMPLETIONS, json=bodies["in chunks"]).json()
        assert long["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert long["choices"] == before["in chunks"]["choices"]
    wait_until(guarded.is_idle, within_s=10)
    assert httpx.post(guarded.url + path, headers=admin).json() == {"is_reset": True}
    assert httpx.post(guarded.url + path, headers=admin).json() == {"is_reset": True}
    assert guarded.metric("chairlift_kv_cache_cached_ratio") == 0


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "file:///etc/passwd", "a\x00b", "%00", "a" * 9000],
)
def test_a_models_name_is_never_a_path(name: str, client: httpx.Client) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": "x", "model": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "root:" not in answer.text
    assert len(answer.text) < 500
    assert client.get("/v1/models/" + name.replace("\x00", "%00")).status_code == 404


@pytest.mark.parametrize("text", ["\\ud800", "a\\udfffb", "\\ud800\\ud800", "\\udc00\\ud800"])
@pytest.mark.parametrize("field", ["prompt", "stop", "user", "cache_salt", "model"])
def test_half_characters_are_refused_and_can_be_quoted(text: str, field: str, client: httpx.Client) -> None:
    answer = client.post(
        COMPLETIONS, content=f'{{"prompt": "x", "{field}": "{text}"}}'.replace('"prompt": "x", "prompt', '"prompt')
    )
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"].encode()


def test_templates_come_with_the_model_alone(client: httpx.Client) -> None:
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    messages = [{"role": "user", "content": attack}]
    assert client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).status_code == 200
    tokens = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert attack in client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]  # as it is: never rendered
    given = client.post("/v1/chat/completions", json={"messages": messages, "chat_template": attack})
    assert (given.status_code, given.json()["error"]["param"]) == (400, "chat_template")
    for name in ("messages", "add_generation_prompt", "chat_template"):
        body = {"messages": messages, "chat_template_kwargs": {name: attack}}
        assert client.post("/v1/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_none_reach_nobody_in_a_long_body_either(number: str, client: httpx.Client) -> None:
    body = f'{{"prompt": "{"x" * 70_000}", "temperature": {number}}}'
    answer = client.post(COMPLETIONS, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")


def test_ids_that_are_none_are_refused_in_a_long_body_too(client: httpx.Client) -> None:
    for wrong in (-1, 2**63, 2**200, 999_999):
        answer = client.post(COMPLETIONS, json={"prompt": [[1] * 1000] * 60 + [[wrong]], "max_tokens": 1})
        assert answer.status_code == 400, answer.text
        assert json.loads(answer.text)["error"]["message"]


def test_pages_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert "<script" not in page
    assert "http://" not in page.replace("http://127.0.0.1", "")
    assert "https://" not in page
