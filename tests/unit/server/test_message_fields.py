"""Fields of /v1/messages that are not served: refused by name, or named in a header."""

from typing import Any

import pytest

from tests.unit.server.stub_engine import StubEngine, post

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
PATHS = ("/v1/messages", "/v1/messages/count_tokens")


def ask(path: str, engine: StubEngine | None = None, **fields: object) -> Any:
    asked = ASKED if path == PATHS[0] else {"messages": ASKED["messages"]}
    return post(path, {**asked, **fields}, engine=engine)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temprature": 1.0}, "unknown field 'temprature'"),
        ({"mcp_servers": [{"url": "x"}]}, "'mcp_servers' is not supported"),
        ({"container": "c"}, "'container' is not supported"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"form": {}}}, "output_config.form"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "'output_format' is not supported"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_in_anthropics_shape(
    path: str, fields: dict[str, Any], said: str
) -> None:
    answer = ask(path, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert said in answer.json()["error"]["message"]


def test_what_has_no_effect_is_accepted_and_named() -> None:
    answer = ask(
        PATHS[0], cache_control={"type": "ephemeral"}, service_tier="standard_only", mcp_servers=[], container=None
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-chairlift-ignored-fields"] == "cache_control, service_tier"
    assert ask(PATHS[1], context_management={"edits": []}).status_code == 200


def test_a_schema_holds_the_answer_as_it_does_in_chat() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    engine = StubEngine()
    ask(PATHS[0], engine=engine, output_config={"format": {"type": "json_schema", "schema": schema}})
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    post("/v1/chat/completions", {"messages": ASKED["messages"], "response_format": form}, engine=engine)
    of_messages, of_chat = (asked["sampling"].grammar for asked in engine.submitted)
    assert of_messages is not None
    assert of_messages == of_chat


def test_effort_is_named_as_without_effect() -> None:
    answer = ask(PATHS[0], output_config={"effort": "low", "format": None})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-chairlift-ignored-fields"] == "output_config.effort"
