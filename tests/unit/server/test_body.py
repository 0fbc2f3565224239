"""Bodies: how deep they may be, by when they are to be here, and what pages of other origins see of the answers."""

import asyncio
import json

import httpx
import pytest
from starlette.types import Message

from chairlift.config.sections import ConnectionSettings, ServerSettings
from chairlift.engine.terms import Terms
from chairlift.errors import OverloadedError
from chairlift.server.access import Access
from chairlift.server.app import create_app
from chairlift.server.body import LONG_BODY_BYTES, MAX_NESTING
from chairlift.server.context import WebSections
from tests.unit.server.stub_engine import StubEngine, post

CHAT = "/v1/chat/completions"


def nested(num_levels: int, num_bytes: int) -> str:
    """A chat of which so many arrays and objects are within each other: the body, the variables and arrays."""
    message = {"role": "user", "content": "x" * num_bytes}
    body = json.dumps({"messages": [message], "max_tokens": 0, "chat_template_kwargs": {"deep": 0}})
    num_arrays = num_levels - 2
    return body.replace('"deep": 0', f'"deep": {"[" * num_arrays}{"]" * num_arrays}')


@pytest.mark.parametrize("num_bytes", [1, LONG_BODY_BYTES])
def test_how_deep_a_body_may_be_does_not_depend_on_its_length(num_bytes: int) -> None:
    deepest = post(CHAT, nested(MAX_NESTING, num_bytes))
    assert "within each other" not in deepest.text
    for num_levels in (MAX_NESTING + 1, 400, 5000):
        refused = post(CHAT, nested(num_levels, num_bytes))
        assert refused.status_code == 400
        assert f"more than {MAX_NESTING} arrays and objects within each other" in refused.json()["error"]["message"]


class BusyEngine(StubEngine):
    """One that turns requests away, but none of those that come here."""

    may_turn_away = True

    def turn_away(self, terms: Terms, num_choices: int) -> OverloadedError | None:
        return None


def test_a_body_has_its_time_once_while_requests_are_turned_away() -> None:
    """It comes right after the time is over, in which the first look at it has waited."""
    num_asked = 0
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            await asyncio.Event().wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return {"type": "http.request", "body": b'{"prompt": "a", "max_tokens": 1}', "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"32")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    settings = ServerSettings()
    sections = WebSections(connections=ConnectionSettings(body_timeout=0.05))
    app = create_app(BusyEngine(), settings, Access(settings), sections)
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_pages_of_listed_origins_may_read_our_headers() -> None:
    settings, origin = ServerSettings(), "https://app.example"
    sections = WebSections(connections=ConnectionSettings(allowed_origins=origin))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(StubEngine(), settings, Access(settings), sections))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/v1/models", headers={"Origin": origin})

    exposed = asyncio.run(ask()).headers["Access-Control-Expose-Headers"]
    for name in ("X-Chairlift-Ignored-Fields", "X-Should-Retry", "Retry-After", "X-Chairlift-Request-Id"):
        assert name in exposed.split(", ")


@pytest.mark.parametrize("stop", [[""], ["x"] * 100, ["x" * 5000], ["x"] * 5000])
def test_messages_blame_the_field_that_was_sent(stop: list[str]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    for path, field in (("/v1/messages", "stop_sequences"), (CHAT, "stop")):
        error = post(path, {**body, field: stop}).json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{field} "), error["message"]
