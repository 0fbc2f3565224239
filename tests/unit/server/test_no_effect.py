"""What has no effect is named in the answer, and the coverage page says of every field what the server does with it."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from chairlift.cli.field_tables import COMPUTING, UNDOCUMENTED, coverage_parts
from chairlift.config.sections import ServerSettings
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.server.app import create_app
from chairlift.server.openai import no_effect
from chairlift.server.openai.no_effect import names_without_effect
from chairlift.server.openai.requests import ChatBody
from tests.unit.server.stub_engine import StubEngine, post, request

HEADER = "x-chairlift-ignored-fields"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
}
TYPED: dict[str, object] = {"include": ["reasoning.encrypted_content"], "service_tier": "auto", "stream_options": {}}
"""Values of fields that are checked although they have no effect; others take anything."""


def unknown_of(model: BaseModel) -> dict[str, Any]:
    """The fields of a body's part that it does not know."""
    assert model.model_extra is not None
    return model.model_extra


def ask(path: str, **fields: object) -> httpx.Response:
    return post(path, {**ASKED[path], **fields})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (
            "/v1/responses",
            {"store": False, "prompt_cache_key": "k", "safety_identifier": "s", "cache_control": None},
            "prompt_cache_key, safety_identifier, store",
        ),
        ("/v1/responses", {"include": ["x"], "stream_options": {"include_obfuscation": False}, "metadata": {"a": "b"}},
         "include, stream_options"),
        ("/v1/responses", {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "medium"}},
         "reasoning.summary"),
        ("/v1/messages", {"service_tier": "standard_only", "parallel_tool_calls": True},
         "parallel_tool_calls, service_tier"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}},
         "thinking.budget_tokens"),
        ("/v1/chat/completions", {"store": True, "parallel_tool_calls": True}, "store"),
        ("/v1/chat/completions", {"service_tier": "auto", "stream_options": None}, None),
        ("/v1/responses", {"include": None, "reasoning": {"summary": None}}, None),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named(path: str, fields: dict[str, Any], named: str | None, stream: bool) -> None:
    answer = ask(path, **fields, stream=stream)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get(HEADER) == named


CACHED = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "text", "text": "x"}
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"cached": {"type": "integer"}}}}


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/messages",
         {"messages": [{"role": "user", "content": [{**TEXT, **CACHED}, TEXT]}] * 3,
          "system": [{**TEXT, **CACHED}],
          "tools": [{"name": "look", "input_schema": {"type": "object", "default": 1}, **CACHED}],
          "tool_choice": {"type": "any"}},
         "messages[].content[].cache_control, system[].cache_control, tools[].cache_control"),
        ("/v1/messages",
         {"messages": [{"role": "user", "content": [
             {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [{**TEXT, "citations": [1]}]}]}]},
         "messages[].content[].content[].citations, messages[].content[].is_error"),
        ("/v1/chat/completions",
         {"messages": [{"role": "assistant", "content": [{**TEXT, **CACHED}], "audio": {"id": "a"}, "refusal": None,
                        "annotations": [], "function_call": None}, *HELLO],
          "tools": [{"type": "function", "function": {**FUNCTION, "returns": "x"}, "defer_loading": True}],
          "tool_choice": "required",
          "structured_outputs": None},
         "messages[].audio, messages[].content[].cache_control, tools[].defer_loading, tools[].function.returns"),
        ("/v1/chat/completions",
         {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "x": 1}, "kind": 1}}},
         "response_format.json_schema.kind"),
        ("/v1/responses",
         {"input": [{"type": "message", "role": "user", "id": "m", "status": "completed",
                     "content": [{"type": "input_text", "text": "x", "annotations": []}]}]},
         "input[].id, input[].status"),
        ("/v1/completions", {"prompt": ["x", "y"]}, None),
    ],
)  # fmt: skip
def test_what_is_not_known_within_objects_and_lists_is_named_once(
    path: str, fields: dict[str, Any], named: str | None
) -> None:
    answer = ask(path, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get(HEADER) == named


def test_names_that_a_client_makes_up_are_few_and_can_be_written() -> None:
    turn = {"role": "user", "content": "x", "x\r\nSet-Cookie": 1, "naïve": 1, "y" * 65: 1}
    turn |= {f"field-{number:03}": 1 for number in range(100)}
    answer = ask("/v1/chat/completions", messages=[turn])
    names = answer.headers[HEADER].split(", ")
    assert names[:2] == ["messages[].?", "messages[].field-000"]
    assert len(names) == no_effect.MAX_NAMES + 1
    assert (names[-1], len(answer.headers[HEADER]) < 2000) == ("...", True)


def test_of_a_long_conversation_the_ends_are_looked_at() -> None:
    """And what comes behind it is not forgotten for it."""

    class Long(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all of a long list was looked at")

    body = ChatBody.model_validate({"messages": HELLO * 10_000, "tools": [{"type": "function", "function": FUNCTION}]})
    for place in (0, -1):
        unknown_of(body.messages[place])["here"] = place
    unknown_of(body.messages[5000])["not_here"] = 1
    assert body.tools is not None
    unknown_of(body.tools[0])["and_here"] = 1
    body.messages = Long(body.messages)
    assert names_without_effect(body) == ["messages[].here", "tools[].and_here"]


def test_what_has_no_effect_does_not_reach_the_chat_template() -> None:
    tokenizer = NotingTokenizer()
    tools = [{"type": "function", "function": {**FUNCTION, "returns": "x"}, "defer_loading": True}]
    asked = {"messages": [{"role": "user", "content": "x", "name": "me", "extra": 1}], "tools": tools, "max_tokens": 1}
    answer = post("/v1/chat/completions", {**asked, "tool_choice": "required"}, engine=StubEngine(tokenizer=tokenizer))
    assert answer.status_code == 200, answer.text
    assert tokenizer.told[0]["tools"] == [{"type": "function", "function": FUNCTION}]
    assert tokenizer.messages[0] == [{"role": "user", "content": "x", "name": "me"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"reasoning": {"effort_level": "low"}}),
        ("/v1/responses", {"text": {"verbosity": "low"}}),
        ("/v1/messages", {"thinking": {"type": "enabled", "bugdet_tokens": 1}}),
        ("/v1/messages", {"metadata": {"x\r\nSet-Cookie": "1"}}),
    ],
)
def test_an_option_that_is_not_known_is_refused_within_an_object_too(path: str, fields: dict[str, Any]) -> None:
    assert ask(path, **fields).status_code == 400


def _table() -> list[tuple[str, str, str]]:
    """Every field of the coverage page with an endpoint and what it says there."""
    document = create_app(StubEngine(), ServerSettings()).openapi()
    *_, rows = coverage_parts(document)
    assert not isinstance(rows, str)
    return [
        (row[0].strip("`"), path, treatment)
        for row in rows[1:]
        for path, treatment in zip(COMPUTING, row[1:], strict=False)
        if path in ASKED
    ]


def test_the_coverage_page_tells_what_the_server_does_with_each_field() -> None:
    async def wrong() -> list[str]:
        app = create_app(StubEngine(), ServerSettings())
        found: list[str] = []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for name, path, treatment in _table():
                if treatment == "yes":
                    continue
                value = TYPED.get(name, {"asks": ["for", "something"]}) if treatment == "ignored" else {"a": 1}
                answer = await client.post(path, json={**ASKED[path], name: value})
                ok = (
                    (answer.status_code, answer.headers.get(HEADER)) == (200, name)
                    if treatment == "ignored"
                    else answer.status_code == 400
                )
                if not ok:
                    found.append(f"{path} {name} is {treatment}, but: {answer.status_code} {answer.text[:200]}")
        return found

    assert asyncio.run(wrong()) == []


def test_the_coverage_page_has_what_asks_for_nothing_and_what_has_no_effect() -> None:
    table = {(name, path): treatment for name, path, treatment in _table()}
    for name in ("previous_response_id", "background", "truncation"):
        assert table[name, "/v1/responses"] == "refused"
    for name in ("include", "stream_options", "store"):
        assert table[name, "/v1/responses"] == "ignored"
    assert table["service_tier", "/v1/messages"] == "ignored"
    assert table["service_tier", "/v1/chat/completions"] == "yes"
    assert table["stream_options", "/v1/chat/completions"] == "yes"


@pytest.mark.parametrize("path", UNDOCUMENTED)
def test_what_the_document_does_not_describe_is_served(path: str) -> None:
    assert request("GET", path).status_code == 200
    assert path not in create_app(StubEngine(), ServerSettings()).openapi()["paths"]


def test_the_coverage_page_names_the_flag_of_every_endpoint_that_is_not_there_without_it() -> None:
    document = create_app(StubEngine(), ServerSettings()).openapi()
    endpoints = coverage_parts(document)[3]
    assert not isinstance(endpoints, str)
    wrong: list[str] = []
    for endpoint, served in endpoints[1:]:
        method, _, path = endpoint.strip("`").partition(" ")
        if not path:
            continue
        answer = request(method, path.replace("{", "").replace("}", ""))
        named = re.findall(r"--[a-z-]+", answer.text) if answer.status_code == 404 else []
        if served != (f"with `{named[0]}`" if named else "yes"):
            wrong.append(f"{endpoint}: {served}, but {answer.status_code} {answer.text[:200]}")
    assert wrong == []


class NotingTokenizer(ByteTokenizer):
    """Notes what its chat template is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.messages: list[Sequence[Any]] = []

    def apply_chat_template(self, messages: Sequence[Any], /, **variables: Any) -> str:
        self.told.append(variables)
        self.messages.append(messages)
        return super().apply_chat_template(messages)


@pytest.mark.parametrize(("kind", "told"), [("enabled", True), ("disabled", False), ("adaptive", None)])
def test_thinking_is_told_to_the_chat_template(kind: str, told: bool | None) -> None:
    tokenizer = NotingTokenizer()
    body = {**ASKED["/v1/messages"], "thinking": {"type": kind}}
    assert post("/v1/messages", body, engine=StubEngine(tokenizer=tokenizer)).status_code == 200
    assert tokenizer.told[0].get("enable_thinking") is told
