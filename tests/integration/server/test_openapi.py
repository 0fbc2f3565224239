"""The OpenAPI document is true: answers have the form that it gives them, with no field that it does not name."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.integration.server.server_process import ServerProcess
from tests.integration.server.test_requests import CHAT, COMPLETIONS, HELLO

ADMIN = {"Authorization": "Bearer sk-admin"}
GIVEN = {"max_tokens": 6, "ignore_eos": True, "seed": 1}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
PLAIN_TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, {"prompt": "x", **GIVEN}),
    "completions": (COMPLETIONS, {"prompt": ["x", "y"], "n": 2, "service_tier": "flex", **USAGE, **GIVEN}),
    "echo": (COMPLETIONS, {"prompt": "x y", "echo": True, "logprobs": 2, "return_token_ids": True, **GIVEN}),
    "prompt": (COMPLETIONS, {"prompt": "x y", "prompt_logprobs": 1, **GIVEN}),
    "stopped": (COMPLETIONS, {"prompt": "x", "stop": list("etaoin shrdlu"), "max_tokens": 99}),
    "chat": (CHAT, {"messages": HELLO, **GIVEN}),
    "choices": (CHAT, {"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 2, "return_token_ids": True,
                       "service_tier": "auto", **USAGE, **GIVEN}),
    "calls": (CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", "max_tokens": 300}),
    "prompt of a chat": (CHAT, {"messages": HELLO, "prompt_logprobs": 0, **GIVEN}),
    "response": ("/v1/responses", {"input": "x", "max_output_tokens": 5, "metadata": {"a": "b"}, "user": "me",
                                   "instructions": "be brief", "reasoning": {"effort": "low"}}),
    "call": ("/v1/responses", {"input": "x", "tools": PLAIN_TOOLS, "tool_choice": "required",
                               "max_output_tokens": 300, "service_tier": "flex"}),
    "message": ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    "use": ("/v1/messages", {"messages": HELLO, "max_tokens": 300, "tool_choice": {"type": "any"},
                             "tools": [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]}),
    "count": ("/v1/messages/count_tokens", {"messages": HELLO}),
    "vectors": ("/v1/embeddings", {"input": ["x", "y"]}),
    "written vector": ("/v1/embeddings", {"input": "x", "encoding_format": "base64"}),
    "tokens": ("/tokenize", {"prompt": "x", "return_token_strs": True}),
    "text": ("/detokenize", {"tokens": [104, 105]}),
    "unknown field": (COMPLETIONS, {"prompt": "x", "prompts": "y"}),
    "unknown model": (CHAT, {"messages": HELLO, "model": "nobody"}),
    "no messages": ("/v1/messages", {"messages": [], "max_tokens": 1}),
    "long message": ("/v1/messages", {"messages": [{"role": "user", "content": "x" * 9000}], "max_tokens": 1}),
    "empty input": ("/v1/responses", {"input": []}),
    "unknown batch file": ("/v1/batches", {"input_file_id": "f", "endpoint": COMPLETIONS, "completion_window": "1h"}),
}  # fmt: skip
PATHS = {  # with a path of the document for those that have a parameter
    "/v1/models": "/v1/models", "/v1/models/fake": "/v1/models/{model}", "/v1/models/none": "/v1/models/{model}",
    "/v1/files": "/v1/files", "/v1/files/none": "/v1/files/{file_id}", "/v1/batches": "/v1/batches",
    "/v1/files/none/content": "/v1/files/{file_id}/content", "/v1/batches/none": "/v1/batches/{batch_id}",
    "/v1/requests": "/v1/requests", "/v1/requests?limit=0": "/v1/requests", "/metrics": "/metrics",
    "/v1/requests/none": "/v1/requests/{request_id}", "/health": "/health", "/ready": "/ready", "/load": "/load",
    "/version": "/version", "/admin/scheduler": "/admin/scheduler",
}  # fmt: skip


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("batches")
    flags = ("--tool-call-parser", "hermes", "--batch-dir", str(folder))
    with (
        ServerProcess(*flags, env={"CHAIRLIFT_ADMIN_API_KEY": "sk-admin"}) as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def document(described: httpx.Client) -> dict[str, Any]:
    """The document, but no answer may have a field that it does not name."""
    document = copy.deepcopy(described.get("/openapi.json").json())
    for schema in document["components"]["schemas"].values():
        if schema.get("properties"):
            schema.setdefault("additionalProperties", False)
    return document


def check(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def check_answer(document: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    responses = document["paths"][path][method]["responses"]
    content = responses.get(str(answer.status_code), responses["default"])["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    value = answer.json() if kind == "application/json" else answer.text
    check(document, content[kind]["schema"], value)


@pytest.mark.parametrize("name", BODIES)
def test_answers_have_the_form_of_the_document(name: str, described: httpx.Client, document: dict[str, Any]) -> None:
    path, body = BODIES[name]
    check_answer(document, "post", path, described.post(path, json=body))


@pytest.mark.parametrize("path", PATHS)
def test_what_is_shown_has_the_form_of_the_document(
    path: str, described: httpx.Client, document: dict[str, Any]
) -> None:
    for headers in ({}, ADMIN):
        check_answer(document, "get", PATHS[path], described.get(path, headers=headers))


STREAMED = [name for name, (path, body) in BODIES.items() if "prompt_logprobs" not in body and path in (
    COMPLETIONS, CHAT, "/v1/responses", "/v1/messages")]  # fmt: skip


@pytest.mark.parametrize("name", STREAMED)
def test_events_have_the_form_of_the_document(name: str, described: httpx.Client, document: dict[str, Any]) -> None:
    path, body = BODIES[name]
    answer = described.post(path, json={**body, "stream": True})
    if answer.status_code != 200:
        check_answer(document, "post", path, answer)
        return
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    schema = content[answer.headers["content-type"].partition(";")[0]]["schema"]
    for block in answer.text.strip().split("\n\n"):
        event = dict(line.split(": ", 1) for line in block.splitlines())
        check(document, schema, event)
        if event["data"] != "[DONE]":
            check(document, schema["properties"]["data"]["anyOf"][1]["contentSchema"], json.loads(event["data"]))


def test_a_file_a_batch_and_the_settings_have_the_form_of_the_document(
    described: httpx.Client, document: dict[str, Any]
) -> None:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": {"prompt": "x"}})
    upload = {"file": ("requests.jsonl", line.encode())}
    created = described.post("/v1/files", data={"purpose": "batch"}, files=upload)
    check_answer(document, "post", "/v1/files", created)
    name = created.json()["id"]
    check_answer(document, "get", "/v1/files/{file_id}", described.get(f"/v1/files/{name}"))
    body = {"input_file_id": name, "endpoint": COMPLETIONS, "completion_window": "1h", "metadata": {"a": "b"}}
    batch = described.post("/v1/batches", json=body)
    check_answer(document, "post", "/v1/batches", batch)
    path = f"/v1/batches/{batch.json()['id']}"
    check_answer(document, "get", "/v1/batches/{batch_id}", described.get(path))
    check_answer(document, "post", "/v1/batches/{batch_id}/cancel", described.post(f"{path}/cancel"))
    for listed in ("/v1/files", "/v1/batches"):
        check_answer(document, "get", listed, described.get(listed))
    content = described.get(f"/v1/files/{name}/content")
    assert content.text == line
    check_answer(document, "get", "/v1/files/{file_id}/content", content)
    check_answer(document, "delete", "/v1/files/{file_id}", described.delete(f"/v1/files/{name}"))
    change = described.patch("/admin/scheduler", json={"max_num_seqs": 8}, headers=ADMIN)
    assert change.status_code == 200
    check_answer(document, "patch", "/admin/scheduler", change)
    reset = described.post("/reset_prefix_cache", headers=ADMIN)
    check_answer(document, "post", "/reset_prefix_cache", reset)


def test_parameters_and_forms_are_described(document: dict[str, Any]) -> None:
    def names(path: str) -> list[str]:
        return [parameter["name"] for parameter in document["paths"][path]["get"].get("parameters", ())]

    assert names("/v1/files") == ["limit", "after", "purpose", "order", "user"]
    assert names("/v1/batches") == ["limit", "after", "user"]
    assert names("/v1/requests") == ["limit"]
    upload = document["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    expiry = {"expires_after[anchor]", "expires_after[seconds]"}
    assert set(upload["multipart/form-data"]["schema"]["properties"]) == {"file", "purpose", *expiry}


def test_nothing_is_described_that_is_never_answered(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert set(operation["responses"]) == {"200", "default"}
    references = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {text.partition('"')[0] for text in references} <= set(document["components"]["schemas"])
