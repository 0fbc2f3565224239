import json
from collections.abc import Sequence

import pytest

from chairlift.errors import EngineUnavailableError, OverloadedError
from tests.unit.server.stub_engine import StubEngine, letters, post

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def events(body: str) -> list[dict]:
    """Events of a whole stream, which must end with [DONE] and hold nothing else."""
    blocks = body.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks[:-1])
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_choices_of_several_prompts_come_in_order() -> None:
    body = post(COMPLETIONS, {"prompt": ["one", "three"], "n": 2, "max_tokens": 3, "echo": True}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == ["oneabc", "onebcd", "threeabc", "threebcd"]
    assert body["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 12,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], ["abc"], [[97, 98, 99]]])
def test_every_form_of_a_prompt_is_the_same_prompt(prompt: object) -> None:
    engine = StubEngine()
    body = post(COMPLETIONS, {"prompt": prompt, "echo": True, "max_tokens": 2}, engine=engine).json()
    assert engine.submitted[0]["prompt"] == [97, 98, 99]
    assert body["choices"][0]["text"] == "abcab"


def test_streamed_choices_keep_their_index_and_text() -> None:
    options = {"prompt": ["x", "y"], "n": 3, "max_tokens": 3, "echo": True}
    whole = post(COMPLETIONS, options).json()
    chunks = events(post(COMPLETIONS, {**options, "stream": True}).text)
    texts = [""] * 6
    for chunk in chunks:
        assert (chunk["object"], chunk["id"]) == ("text_completion", chunks[0]["id"])
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_a_chat_stream_begins_each_choice_with_its_role() -> None:
    chunks = events(post(CHAT, {"messages": HELLO, "n": 2, "max_tokens": 2, "stream": True}).text)
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
        assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_b70_usage_is_streamed_only_if_asked_for_and_always_right(path: str) -> None:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "p" * 30}
    body |= {"max_tokens": 3, "n": 2}
    whole = post(path, body).json()["usage"]

    plain = events(post(path, {**body, "stream": True}).text)
    assert all("usage" not in chunk and chunk["choices"] for chunk in plain)

    asked = events(post(path, {**body, "stream": True, "stream_options": {"include_usage": True}}).text)
    assert [chunk["usage"] for chunk in asked] == [None] * (len(asked) - 1) + [whole]
    assert [chunk["choices"] for chunk in asked].count([]) == 1

    options = {"include_usage": True, "continuous_usage_stats": True}
    running = events(post(path, {**body, "stream": True, "stream_options": options}).text)
    assert {chunk["usage"]["prompt_tokens"] for chunk in running} == {whole["prompt_tokens"]}
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts)
    assert running[-1]["usage"] == whole


@pytest.mark.parametrize("stream", [False, True])
def test_b42_echo_without_output_is_exactly_the_prompt(stream: bool) -> None:
    engine = StubEngine()
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = post(
        COMPLETIONS, {"prompt": "a b", "echo": True, "max_tokens": 0, "stream": stream, **options}, engine=engine
    )
    chunks = events(response.text) if stream else [response.json()]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "a b"
    assert chunks[-1]["usage"]["completion_tokens"] == 0
    assert chunks[-1]["usage"]["prompt_tokens"] == 3
    assert engine.submitted == []


def test_b42_max_tokens_null_is_the_same_as_absent() -> None:
    engine = StubEngine()
    post(COMPLETIONS, {"prompt": "x"}, engine=engine)
    post(COMPLETIONS, {"prompt": "x", "max_tokens": None}, engine=engine)
    assert [submitted["sampling"].max_tokens for submitted in engine.submitted] == [16, 16]


def test_max_completion_tokens_wins_and_chat_has_no_default_limit() -> None:
    engine = StubEngine()
    post(CHAT, {"messages": HELLO}, engine=engine)
    post(CHAT, {"messages": HELLO, "max_tokens": 9, "max_completion_tokens": 5}, engine=engine)
    post(CHAT, {"messages": HELLO, "max_tokens": 9}, engine=engine)
    assert [submitted["sampling"].max_tokens for submitted in engine.submitted] == [None, 5, 9]


def test_request_fields_reach_the_engine() -> None:
    engine = StubEngine()
    fields = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 5,
        "stop_token_ids": (3,),
        "include_stop_str_in_output": True,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    body = {
        "prompt": "x",
        "stop": "end",
        "priority": 3,
        "cache_salt": "s",
        "deadline_ms": 900,
        "ttft_deadline_ms": 0.5,
        **fields,
        "stop_token_ids": [3],
    }
    assert post(COMPLETIONS, body, engine=engine, headers={"X-Request-Id": "mine"}).status_code == 200
    submitted = engine.submitted[0]
    assert {name: getattr(submitted["sampling"], name) for name in fields} == fields
    assert submitted["sampling"].stop == ("end",)
    terms = submitted["terms"]
    assert (terms.priority, terms.cache_salt, terms.label, terms.tenant) == (3, "s", "mine", "")
    assert (terms.deadline_ms, terms.ttft_deadline_ms) == (900, 0.5)


def test_parts_of_a_message_are_joined_and_developer_is_system() -> None:
    engine = StubEngine()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    post(CHAT, {"messages": messages}, engine=engine)
    expected = "<|system|>d<|end|><|user|>a\nb<|end|><|assistant|>"
    assert engine.submitted[0]["prompt"] == engine.tokenizer.encode(expected)


@pytest.mark.parametrize("stream", [False, True])
def test_b72_a_refusal_comes_before_the_stream_and_ends_the_other_prompts(stream: bool) -> None:
    def refuse(prompt: Sequence[int]) -> Exception | None:
        return OverloadedError("2 requests wait", retry_after_s=7) if list(prompt) == [2] else None

    engine = StubEngine(refuse=refuse)
    response = post(COMPLETIONS, {"prompt": [[1], [2], [3]], "stream": stream}, engine=engine)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["type"] == "overloaded_error"
    assert {stream.num_aborts for stream in engine.streams} == {1}


@pytest.mark.parametrize("prompts", [["x"], ["x", "y"]])
def test_a_stream_that_breaks_ends_with_an_error_event(prompts: list[str]) -> None:
    async def breaking(prompt, sampling):
        async for delta in letters(prompt, sampling):
            if delta.num_output_tokens == 3:
                raise EngineUnavailableError("the engine process died")
            yield delta

    engine = StubEngine(script=breaking)
    whole = post(COMPLETIONS, {"prompt": prompts}, engine=engine)
    assert (whole.status_code, whole.json()["error"]["type"]) == (503, "engine_unavailable")

    chunks = events(post(COMPLETIONS, {"prompt": prompts, "stream": True}, engine=engine).text)
    assert [choice["text"] for choice in chunks[0]["choices"]] == ["a"]
    assert chunks[-1] == {
        "error": {
            "message": "the engine process died",
            "type": "engine_unavailable",
            "param": None,
            "code": None,
        }
    }


def test_an_aborted_request_is_no_success() -> None:
    async def aborted(prompt, sampling):
        async for delta in letters(prompt, sampling):
            delta = delta if delta.finish_reason is None else type(delta)(0, "", (), 3, 0, "abort")
            yield delta

    engine = StubEngine(script=aborted)
    assert post(COMPLETIONS, {"prompt": "x"}, engine=engine).status_code == 503
    assert "error" in events(post(COMPLETIONS, {"prompt": "x", "stream": True}, engine=engine).text)[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_shows_no_internals(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def faulty(prompt, sampling):
        yield (await anext(letters(prompt, sampling)))
        raise RuntimeError("secret detail")

    response = post(
        COMPLETIONS, {"prompt": "x", "stream": stream}, engine=StubEngine(script=faulty), raise_faults=False
    )
    assert response.status_code == (200 if stream else 500)
    assert "secret" not in response.text
    assert "internal_server_error" in response.text
    if stream:
        assert "secret detail" in caplog.text


def test_a_chunk_without_text_is_not_sent() -> None:
    async def halves(prompt, sampling):
        async for delta in letters(prompt, sampling):
            yield delta if delta.num_output_tokens % 2 else type(delta)(0, "", (1,), delta.num_output_tokens)

    body = {"prompt": "x", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(post(COMPLETIONS, body, engine=StubEngine(script=halves)).text)
    assert [choice["text"] for chunk in chunks for choice in chunk["choices"]] == ["a", "c", "e"]
    assert chunks[-1]["usage"]["completion_tokens"] == 5
