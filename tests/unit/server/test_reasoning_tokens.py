"""Reasoning is counted among the tokens of an answer: the same number whole and streamed, however deltas are cut."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from chairlift.config.sections import AnswerSettings, ServerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.engine.output_processor import ChoiceProcessor, DeltaBuffer
from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.app import create_app
from chairlift.server.context import WebSections
from chairlift.server.openai.reasoning_count import ReasoningCount
from chairlift.server.tools.reasoning import Opening
from tests.unit.server.stub_engine import StubEngine

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
THOUGHT = "<think>\nHm, é?</think>"
ANSWER = f"{THOUGHT}\n\nYes."
NUM_THOUGHT = len(THOUGHT.encode())


def deltas_of(text: str, size: int, sampling: SamplingParams | None = None, index: int = 0) -> list[ChoiceDelta]:
    """A choice that comes in steps of so many tokens, each of one byte, and ends by itself."""
    choice = ChoiceProcessor(index, sampling or SamplingParams(max_tokens=999), ByteTokenizer(), ())
    tokens = [*text.encode(), END_ID]
    deltas: list[ChoiceDelta] = []
    for start in range(0, len(tokens), size):
        is_last = start + size >= len(tokens)
        deltas.append(
            choice.process(
                tokens[start : start + size],
                finish_reason="stop" if is_last else None,
                stop_token=END_ID if is_last else None,
            )
        )
        if choice.finish_reason is not None:
            break
    return deltas


def counts(deltas: Sequence[ChoiceDelta], opening: Opening = "possible") -> list[int]:
    """The count after each delta."""
    count, found = ReasoningCount(opening), list[int]()
    for delta in deltas:
        count.add(delta)
        found.append(count.num_tokens)
    return found


def merged(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    buffer = DeltaBuffer()
    for delta in deltas:
        buffer.put(delta)
    return buffer.take()


@pytest.mark.parametrize("size", [1, 2, 5, 7, 100])
@pytest.mark.parametrize(
    ("opening", "text", "expected"),
    [
        ("possible", ANSWER, NUM_THOUGHT),
        ("possible", f" \n{ANSWER}", 2 + NUM_THOUGHT),
        ("inside", ANSWER.removeprefix("<think>"), NUM_THOUGHT - 7),
        ("inside", "</think>Yes.", 8),
        ("possible", "Yes. <think>no</think>", 0),
        ("possible", "<thin", 0),
        ("none", ANSWER, 0),
        ("inside", "never ends </thin", 18),  # and the token that ended it
        ("possible", "", 0),
    ],
)
def test_every_token_that_begins_before_the_end_of_the_reasoning_counts(
    opening: Opening, text: str, expected: int, size: int
) -> None:
    deltas = deltas_of(text, size)
    found = counts(deltas, opening)
    assert found[-1] == expected
    assert found == sorted(found)
    assert counts([merged(deltas)], opening) == [expected]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("stop", ["</think>\n\nYet", "</think>\n\nYes"])
def test_text_that_is_held_back_for_a_stop_string_moves_no_token(stop: str, size: int) -> None:
    deltas = deltas_of(ANSWER, size, SamplingParams(max_tokens=999, stop=(stop,), include_stop_str_in_output=True))
    found = counts(deltas)
    assert found[-1] == NUM_THOUGHT
    assert found == sorted(found)


def test_reasoning_that_a_stop_string_ended_is_all_there_is() -> None:
    deltas = deltas_of("<think>one two", 1, SamplingParams(max_tokens=999, stop=("two",)))
    assert deltas[-1].finish_reason == "stop"
    assert counts(deltas)[-1] == len("<think>one two")


def test_a_long_thought_costs_no_more_per_token_at_its_end() -> None:
    count = ReasoningCount("inside")
    for place in range(5_000):
        count.add(ChoiceDelta(0, "a", (97,), place + 1, text_offsets=(place,)))
    assert count.num_tokens == 5_000
    kept = [value for value in vars(count).values() if isinstance(value, str | list)]
    assert sum(map(len, kept)) < 50


# ------------------------------------------------------------------------------------------- with the OpenAI client


async def thinker(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
    """Each choice says the same, and is cut after ``max_tokens``."""
    del prompt
    for index in range(sampling.n):
        limit = sampling.max_tokens
        for delta in deltas_of(ANSWER, 1, index=index):
            await asyncio.sleep(0)
            if limit is not None and delta.num_output_tokens == limit:
                yield ChoiceDelta(index, delta.text, delta.token_ids, limit, 0, "length", None, (), delta.text_offsets)
                break
            yield delta


async def _with_client(ask: Any, parser: str) -> Any:
    sections = WebSections(answers=AnswerSettings(reasoning_parser=parser))
    app = create_app(StubEngine(script=thinker), ServerSettings(), sections=sections)
    http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    async with http, openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as client:
        return await ask(client)


def chat_usages(parser: str = "qwen3", **fields: Any) -> tuple[Any, list[Any]]:
    """Usage of a whole answer, and every usage of its stream."""

    async def ask(client: openai.AsyncOpenAI) -> tuple[Any, list[Any]]:
        wanted: Any = {"model": "stub", "messages": HELLO, **fields}
        whole = (await client.chat.completions.create(**wanted)).usage
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        stream: Any = await client.chat.completions.create(**wanted, stream=True, stream_options=options)
        return whole, [chunk.usage async for chunk in stream]

    return asyncio.run(_with_client(ask, parser))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, NUM_THOUGHT),
        ({"n": 3}, 3 * NUM_THOUGHT),
        ({"extra_body": {"include_reasoning": False}}, NUM_THOUGHT),
        ({"max_tokens": 12}, 12),
        ({"max_tokens": NUM_THOUGHT + 3}, NUM_THOUGHT),
    ],
)
def test_a_chat_counts_its_reasoning_whole_and_streamed(fields: dict[str, Any], expected: int) -> None:
    whole, streamed = chat_usages(**fields)
    assert whole.completion_tokens_details.reasoning_tokens == expected
    assert whole.completion_tokens >= expected
    assert streamed[-1] == whole
    running = [usage.completion_tokens_details.reasoning_tokens for usage in streamed]
    assert running == sorted(running)


def test_without_a_parser_nothing_is_told_apart() -> None:
    whole, streamed = chat_usages("none")
    assert whole.completion_tokens_details.reasoning_tokens == 0
    assert streamed[-1] == whole


def test_a_response_counts_its_reasoning_whole_and_streamed() -> None:
    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        whole = await client.responses.create(model="stub", input="hi")
        stream: Any = await client.responses.create(model="stub", input="hi", stream=True)
        last = [event async for event in stream][-1]
        return [whole.usage, last.response.usage]

    whole, streamed = asyncio.run(_with_client(ask, "qwen3"))
    assert whole.output_tokens_details.reasoning_tokens == NUM_THOUGHT
    assert whole.output_tokens == len(ANSWER.encode()) + 1
    assert streamed == whole


def test_text_completions_have_no_reasoning_to_count() -> None:
    async def ask(client: openai.AsyncOpenAI) -> Any:
        answer = await client.completions.with_raw_response.create(model="stub", prompt="hi")
        return json.loads(answer.text)["usage"]

    assert "completion_tokens_details" not in asyncio.run(_with_client(ask, "qwen3"))
