import asyncio
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from chairlift.config.sections import ServerSettings, TenancySettings
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.errors import ConfigurationError
from chairlift.server.access import Access
from chairlift.server.app import create_app
from chairlift.server.middleware import asked_for
from tests.unit.server.stub_engine import Facts, StubEngine, post, request

KEY = ServerSettings(api_key="sésame")
SETTINGS = ServerSettings()


def bearer(key: str, scheme: str = "Bearer") -> dict:
    return {"Authorization": f"{scheme} {key}".encode()}


def test_health_follows_the_engine() -> None:
    assert request("GET", "/health").json() == {"status": "ok"}
    down = request("GET", "/health", engine=StubEngine(is_healthy=False))
    assert (down.status_code, down.json()["error"]["type"]) == (503, "engine_unavailable")
    draining = request("GET", "/health", engine=StubEngine(is_draining=True))
    assert (draining.status_code, draining.json()) == (200, {"status": "draining"})


def test_ready_says_whether_to_send_requests() -> None:
    assert request("GET", "/ready").json() == {"status": "ok"}
    for engine in (StubEngine(is_healthy=False), StubEngine(is_draining=True)):
        away = request("GET", "/ready", engine=engine)
        assert away.status_code == 503
        assert int(away.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready"])
def test_probes_may_ask_for_the_head_alone(path: str) -> None:
    answer = request("HEAD", path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert request("HEAD", path, engine=StubEngine(is_healthy=False)).status_code == 503


def test_metrics_are_the_engines() -> None:
    response = request("GET", "/metrics")
    assert response.text == "stub_metric 1\n"
    assert response.headers["content-type"].startswith("text/plain; version=")


def test_models_are_listed_and_found_by_name() -> None:
    engine = StubEngine()
    engine.model_info.name = "org/model"
    listed = request("GET", "/v1/models", engine=engine).json()
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["org/model"])
    assert request("GET", "/v1/models/org/model", engine=engine).json()["max_model_len"] == 64
    assert request("GET", "/v1/models/org", engine=engine).status_code == 404


def test_what_is_not_there_is_answered_in_the_same_shape() -> None:
    missing = request("GET", "/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    wrong = request("GET", "/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert "GET" in wrong.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/nothing", "/tokenize", "/detokenize", "/nope"])
def test_every_other_path_needs_the_key(path: str) -> None:
    for headers in ({}, bearer("wrong"), bearer("sésame", "Basic"), bearer(""), {"Authorization": "sésame".encode()}):
        response = request("GET", path, server=KEY, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert "sésame" not in response.text
    assert request("GET", path, server=KEY, headers=bearer("sésame")).status_code != 401
    assert request("GET", path, server=KEY, headers=bearer("sésame", "bearer")).status_code != 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/load", "/metrics", "/version", "/docs", "/openapi.json"])
def test_operations_need_no_key(path: str) -> None:
    assert request("GET", path, server=KEY).status_code == 200


def test_an_empty_key_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="--api-key"):
        request("GET", "/health", server=ServerSettings(api_key=""))


def test_the_label_of_a_request_comes_back() -> None:
    assert request("GET", "/version", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert request("GET", "/nope", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    unauthorised = request("GET", "/v1/models", server=KEY, headers={"X-Request-Id": "mine"})
    assert unauthorised.headers["x-request-id"] == "mine"
    for label in ("x" * 129, "é".encode(), ""):
        assert "x-request-id" not in request("GET", "/version", headers={"X-Request-Id": label}).headers


def test_tokenize_and_detokenize_are_inverse() -> None:
    tokens = post("/tokenize", {"prompt": "hé<|end|>", "return_token_strs": True}).json()
    assert (tokens["count"], tokens["tokens"]) == (4, [104, 195, 169, 257])
    assert tokens["max_model_len"] == 64
    assert tokens["token_strs"][0] == "h"
    assert post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": "hé<|end|>"}
    messages = post("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()["tokens"]
    assert messages == [258, 120, 257, 259]


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
def test_tokenize_takes_either_prompt_or_messages(body: dict) -> None:
    assert post("/tokenize", body).status_code == 400


class WatchedTokenizer(ByteTokenizer):
    """Notes in which threads it worked on something long."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.threads.add(threading.current_thread())
        return super().decode(ids, skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        self.threads.add(threading.current_thread())
        return super().apply_chat_template(messages, **options)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x" * 5000, "return_token_strs": True}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}] * 300}),
        ("/detokenize", {"tokens": [120] * 5000}),
        ("/v1/completions", {"prompt": [120] * 5000, "echo": True, "max_tokens": 0}),
    ],
)
def test_long_work_is_done_in_a_thread_so_that_others_need_not_wait(path: str, body: dict) -> None:
    tokenizer = WatchedTokenizer()
    engine = StubEngine(tokenizer=tokenizer, model_info=Facts(max_model_len=6000))
    assert post(path, body, engine=engine).status_code == 200
    assert tokenizer.threads
    assert threading.main_thread() not in tokenizer.threads


def test_a_prompt_that_is_too_long_is_not_turned_into_its_echo() -> None:
    tokenizer = WatchedTokenizer()
    body = {"prompt": [120] * 65, "echo": True, "max_tokens": 4}
    response = post("/v1/completions", body, engine=StubEngine(tokenizer=tokenizer))
    assert "64 tokens (--max-model-len), but the prompt has 65 and asks for max_tokens=4" in response.text
    assert not tokenizer.threads


def test_detokenize_refuses_unknown_ids() -> None:
    assert "262" in post("/detokenize", {"tokens": [262]}).json()["error"]["message"]


def test_a_template_variable_cannot_replace_the_messages() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}}
    assert post("/v1/chat/completions", body).json()["error"]["param"] == "chat_template_kwargs"


def test_continuing_a_message_excludes_a_generation_prompt() -> None:
    engine = StubEngine()
    body = {"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": True}
    assert post("/v1/chat/completions", body, engine=engine).status_code == 200
    assert engine.submitted[0]["prompt"] == [259, 120]
    assert post("/v1/chat/completions", {**body, "add_generation_prompt": True}).status_code == 400


def test_the_openapi_document_has_no_loose_ends() -> None:
    document = request("GET", "/openapi.json").json()
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', request("GET", "/openapi.json").text))
    assert references <= set(document["components"]["schemas"])
    assert {"CompletionBody", "ChatBody", "Completion", "ChatCompletion", "ErrorBody"} <= references
    assert "/v1/chat/completions" in document["paths"]


def test_a_document_without_keys_asks_for_none() -> None:
    document = request("GET", "/openapi.json").json()
    assert "securitySchemes" not in document["components"]
    assert not [one for methods in document["paths"].values() for one in methods.values() if "security" in one]


@pytest.mark.parametrize(("api_key", "admin_key"), [("sk-client", "sk-admin"), ("sk-client", None), (None, "sk-admin")])
def test_the_document_says_which_key_each_operation_asks_for(api_key: str | None, admin_key: str | None) -> None:
    """Each operation is sent without a key, and with each key in each way: it is let in as the document says."""
    app = create_app(
        StubEngine(), SETTINGS, Access(ServerSettings(api_key=api_key), TenancySettings(admin_api_key=admin_key))
    )
    keys = {"key": api_key, "keyHeader": api_key, "adminKey": admin_key, "adminKeyHeader": admin_key}
    keys = {name: key for name, key in keys.items() if key is not None}

    async def wrong() -> list[str]:
        document = app.openapi()
        schemes = document["components"]["securitySchemes"]
        assert set(schemes) == set(keys)
        found: list[str] = []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    ways = [name for way in operation.get("security", [{}]) for name in (*way, *([] if way else [""]))]
                    for name in ("", *keys):
                        answer = await client.request(method, path, headers=sent(schemes.get(name), keys.get(name)))
                        is_let_in = answer.status_code != 401
                        if is_let_in != (name in ways or "" in ways) and not is_off(path):
                            found.append(f"{method} {path} with {name!r}: {answer.status_code}, but {ways}")
        return found

    def sent(scheme: dict[str, str] | None, key: str | None) -> dict[str, str]:
        if scheme is None or key is None:
            return {}
        return {"Authorization": f"Bearer {key}"} if scheme["type"] == "http" else {scheme["name"]: key}

    def is_off(path: str) -> bool:
        return admin_key is None and asked_for(path) == "administrator"

    assert asyncio.run(wrong()) == []


def test_the_documentation_page_loads_nothing_from_elsewhere() -> None:
    page = request("GET", "/docs").text
    assert "max_completion_tokens" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", page)
