"""Tools with a model that was taught no form of calls: refused where the model is to choose, on every endpoint."""

from typing import Any

import pytest

from tests.unit.server.stub_engine import post

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FUNCTION = {"name": "look", "parameters": {"type": "object"}}
HELLO = [{"role": "user", "content": "hi"}]
RETURNED = [
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "rain"},
]
ASKED: dict[str, tuple[str, dict[str, Any], object]] = {
    "chat": (CHAT, {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]}, "none"),
    "responses": (RESPONSES, {"input": RETURNED, "tools": [{"type": "function", **FUNCTION}]}, "none"),
    "messages": (
        MESSAGES,
        {"messages": HELLO, "max_tokens": 3, "tools": [{"name": "look", "input_schema": {"type": "object"}}]},
        {"type": "none"},
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_tools_without_a_choice_are_refused_and_none_of_them_is_answered(name: str) -> None:
    path, body, none = ASKED[name]
    refused = post(path, body)
    assert refused.status_code == 400
    assert "tools with tool_choice auto need a model whose chat template shows" in refused.json()["error"]["message"]
    answered = post(path, {**body, "tool_choice": none})
    assert answered.status_code == 200, answered.text
