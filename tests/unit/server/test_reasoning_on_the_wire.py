"""What a model thinks reaches clients apart from what it answers, in the shape of each API, whole and streamed."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Any

import httpx
import pytest

from chairlift.config.sections import AnswerSettings, ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.app import create_app
from chairlift.server.context import WebSections
from tests.unit.server.stub_engine import Script, StubEngine

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
CHAT = {"messages": HELLO}
MESSAGES = {"messages": HELLO, "max_tokens": 99}
RESPONSES = {"input": "hi"}
SIZES = pytest.mark.parametrize("size", [1, 3, 5, 100])
"""Characters of the answer that come at a time; the tags are cut anywhere."""


def says(text: str, size: int) -> Script:
    """A model that says this, a few characters at a time."""

    async def script(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        del prompt, sampling
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        for number, piece in enumerate(pieces, 1):
            await asyncio.sleep(0)
            reason = "stop" if number == len(pieces) else None
            yield ChoiceDelta(0, piece, tuple(piece.encode()), number, 0, reason)

    return script


def ask(path: str, body: dict[str, Any], size: int, text: str = "<think>a</think>b") -> httpx.Response:
    async def send() -> httpx.Response:
        sections = WebSections(answers=AnswerSettings(reasoning_parser="qwen3"))
        app = create_app(StubEngine(script=says(text, size)), ServerSettings(), sections=sections)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)

    answer = asyncio.run(send())
    assert answer.status_code == 200, answer.text
    assert "think>" not in answer.text
    return answer


def events(path: str, body: dict[str, Any], size: int, text: str = "<think>a</think>b") -> list[dict[str, Any]]:
    """The events of the answer as a stream; each that has a name has it in its data too."""
    blocks = ask(path, {**body, "stream": True}, size, text).text.strip().split("\n\n")
    found: list[dict[str, Any]] = []
    for block in blocks:
        *name, data = block.splitlines()
        if data == "data: [DONE]":
            assert block == blocks[-1]
            continue
        found.append(json.loads(data.removeprefix("data: ")))
        assert name in ([], [f"event: {found[-1].get('type')}"])
    return found


@SIZES
def test_a_chat_has_reasoning_content_beside_its_content(size: int) -> None:
    message = ask("/v1/chat/completions", CHAT, size).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("a", "b")
    deltas = [chunk["choices"][0]["delta"] for chunk in events("/v1/chat/completions", CHAT, size)]
    told = [(name, delta[name]) for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)]
    assert told == [("reasoning_content", "a"), ("content", "b")]


@SIZES
def test_a_long_thought_is_streamed_as_it_comes_and_nothing_of_it_is_lost(size: int) -> None:
    thought, answer = "Let me <b>think</b>: 2 < 3 & é漢🙂. ", "It is </thin>."
    text = f"<think>{thought}</think>{answer}"
    deltas = [chunk["choices"][0]["delta"] for chunk in events("/v1/chat/completions", CHAT, size, text)]
    kinds = [name for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)]
    assert [kind for kind, _ in groupby(kinds)] == ["reasoning_content", "content"]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == thought.strip()
    assert "".join(delta.get("content") or "" for delta in deltas) == answer
    if size == 1:
        assert kinds.count("reasoning_content") > 10


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_that_is_not_wanted_is_left_out(stream: bool) -> None:
    answer = ask("/v1/chat/completions", {**CHAT, "include_reasoning": False, "stream": stream}, 2)
    assert "reasoning_content" not in answer.text.replace('"reasoning_content":null', "")
    assert '"a"' not in answer.text
    assert '"b"' in answer.text


@SIZES
def test_a_message_has_a_block_of_thinking_before_its_text(size: int) -> None:
    whole = ask("/v1/messages", MESSAGES, size).json()
    assert whole["content"] == [
        {"type": "thinking", "thinking": "a", "signature": ""},
        {"type": "text", "text": "b"},
    ]
    told = events("/v1/messages", MESSAGES, size)
    assert [event["type"] for event in told] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 2,
        "message_delta",
        "message_stop",
    ]
    blocks = [(event["index"], event["content_block"]) for event in told if event["type"] == "content_block_start"]
    assert blocks == [
        (0, {"type": "thinking", "thinking": "", "signature": ""}),
        (1, {"type": "text", "text": ""}),
    ]
    deltas = [(event["index"], event["delta"]) for event in told if event["type"] == "content_block_delta"]
    assert deltas == [(0, {"type": "thinking_delta", "thinking": "a"}), (1, {"type": "text_delta", "text": "b"})]


@SIZES
def test_a_response_has_an_item_of_reasoning_before_its_message(size: int) -> None:
    reasoning, message = ask("/v1/responses", RESPONSES, size).json()["output"]
    assert (reasoning["type"], message["type"]) == ("reasoning", "message")
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "a"}]
    assert message["content"][0]["text"] == "b"
    told = events("/v1/responses", RESPONSES, size)
    assert [event["type"] for event in told] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added", "response.reasoning_text.delta"),
        *("response.reasoning_text.done", "response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    by_type = {event["type"]: event for event in told}
    delta, done = by_type["response.reasoning_text.delta"], by_type["response.reasoning_text.done"]
    assert (delta["delta"], delta["output_index"], delta["content_index"]) == ("a", 0, 0)
    assert (done["text"], done["item_id"]) == ("a", delta["item_id"])
    text = by_type["response.output_text.delta"]
    assert (text["delta"], text["output_index"]) == ("b", 1)
    assert text["item_id"] != delta["item_id"]
    settled = by_type["response.completed"]["response"]["output"]
    assert [item["type"] for item in settled] == ["reasoning", "message"]
    assert settled[0]["content"] == reasoning["content"]


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)])
def test_a_thought_without_an_answer_is_no_text(path: str, body: dict[str, Any]) -> None:
    whole = ask(path, body, 4, "<think>only this</think>").json()
    items = whole.get("content") or whole["output"]
    assert [item["type"] for item in items] in (["thinking"], ["reasoning"])
