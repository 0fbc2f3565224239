"""Requests as clients send them, to a server process on the fake executor. Case numbers are those of the issue list
of comparable engines."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from chairlift.engine.byte_tokenizer import ByteTokenizer
from tests.integration.server.server_process import ServerProcess

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def stream(client: httpx.Client, path: str, body: dict, headers: dict | None = None) -> list[dict]:
    """All events of a stream that ends with [DONE]."""
    with client.stream("POST", path, json={**body, "stream": True}, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def texts_by_index(chunks: list[dict]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + delta
    return dict(sorted(texts.items()))


@pytest.mark.parametrize("max_tokens", [1, 10])
def test_b44_a_prompt_that_fills_the_context_is_refused_and_one_below_gets_one_token(max_tokens: int) -> None:
    """Rule: a prompt must leave room for one token; more ``max_tokens`` than the room are lowered to it."""
    with ServerProcess("--max-model-len", "16") as server, httpx.Client(base_url=server.url) as client:
        fits = client.post(COMPLETIONS, json={"prompt": [5] * 15, "max_tokens": max_tokens, "ignore_eos": True}).json()
        assert fits["usage"]["completion_tokens"] == 1
        assert fits["choices"][0]["finish_reason"] == "length"
        for length in (16, 17):
            for streamed in (False, True):
                body = {"prompt": [5] * length, "max_tokens": max_tokens, "stream": streamed}
                response = client.post(COMPLETIONS, json=body)
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["code"] == "context_length_exceeded"
                for said in ("16", str(length), f"max_tokens={max_tokens}", "--max-model-len"):
                    assert said in error["message"]
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "wrong", [{"prompt": "x" * 3000}, {"prompt": "x", "temperature": -1}, {"prompt": "x", "min_tokens": 99}]
)
def test_b64_a_streamed_request_that_is_wrong_is_refused_like_any_other(client: httpx.Client, wrong: dict) -> None:
    whole = client.post(COMPLETIONS, json=wrong)
    streamed = client.post(COMPLETIONS, json={**wrong, "stream": True})
    assert whole.status_code == streamed.status_code == 400
    assert whole.json() == streamed.json()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_b66_streamed_choices_equal_those_in_one_piece(client: httpx.Client, path: str) -> None:
    body = {"n": 3, "seed": 1, "temperature": 0.9, "max_tokens": 40, "ignore_eos": True}
    body |= {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    whole = client.post(path, json=body).json()
    expected = {
        choice["index"]: choice["message"]["content"] if path == CHAT else choice["text"] for choice in whole["choices"]
    }
    assert texts_by_index(stream(client, path, body)) == expected
    assert sorted(expected) == [0, 1, 2]
    assert len(set(expected.values())) == 3


def test_b68_result_i_belongs_to_prompt_i(client: httpx.Client) -> None:
    prompts = [f"prompt number {number}" for number in range(5)]
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [client.post(COMPLETIONS, json={"prompt": p, **options}).json()["choices"][0]["text"] for p in prompts]
    for _ in range(2):
        together = client.post(COMPLETIONS, json={"prompt": prompts, **options}).json()
        assert [choice["text"] for choice in together["choices"]] == alone
    chunks = stream(client, COMPLETIONS, {"prompt": prompts, **options})
    assert list(texts_by_index(chunks).values()) == alone


def test_b70_usage_of_a_prompt_in_many_chunks(client: httpx.Client) -> None:
    body = {"prompt": "p" * 900, "max_tokens": 1, "ignore_eos": True, "cache_salt": "b70"}
    usage = client.post(COMPLETIONS, json=body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (900, 1, 901)
    usage["prompt_tokens_details"]["cached_tokens"] = 896  # the whole pages of the first request

    assert all("usage" not in chunk for chunk in stream(client, COMPLETIONS, body))
    asked = stream(client, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    assert (asked[-1]["choices"], asked[-1]["usage"]) == ([], usage)
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    options = {"include_usage": True, "continuous_usage_stats": True}
    running = stream(client, COMPLETIONS, {**body, "stream_options": options})
    assert {chunk["usage"]["prompt_tokens"] for chunk in running} == {900}
    assert running[-1]["usage"] == usage


def test_cached_tokens_are_those_of_whole_pages_and_of_the_same_salt(client: httpx.Client) -> None:
    def cached(**options: object) -> int:
        body = {"prompt": "c" * 100, "max_tokens": 1, "ignore_eos": True, **options}
        return client.post(COMPLETIONS, json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(cache_salt="mine") for _ in range(2)] == [0, 96]
    assert cached(cache_salt="other") == 0


def test_b72_when_the_queue_is_full_the_rest_is_refused_before_any_chunk() -> None:
    flags = ("--max-num-seqs", "1", "--max-num-queued-reqs", "2")
    with ServerProcess(*flags) as server, ThreadPoolExecutor(12) as pool:
        at_once = threading.Barrier(12)

        def ask(number: int) -> httpx.Response:
            body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": number % 2 == 0}
            at_once.wait()
            return httpx.post(server.url + COMPLETIONS, json=body, timeout=60)

        responses = list(pool.map(ask, range(12)))
        refused = [response for response in responses if response.status_code != 200]
        assert {response.status_code for response in refused} == {503}
        assert 9 <= len(refused) <= 10  # one runs, two wait, and one may have ended meanwhile
        for response in refused:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["type"] == "overloaded_error"
            assert "--max-num-queued-reqs" in response.json()["error"]["message"]
        for response in responses:
            if response.status_code == 200:
                assert '"finish_reason":"length"' in response.text
        assert server.metric("chairlift_num_requests_waiting") == 0


def test_b34_two_requests_may_carry_the_same_id(server: ServerProcess, client: httpx.Client) -> None:
    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        response = httpx.post(server.url + COMPLETIONS, json=body, headers={"X-Request-Id": "same"}, timeout=60)
        assert response.headers["x-request-id"] == "same"
        return response.json()["choices"][0]["text"]

    alone = [ask("one"), ask("two")]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, ["one", "two"])) == alone
    assert ask("one") == alone[0]
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    assert all(float(line.rsplit(" ", 1)[1]) >= 0 for line in lines)


@pytest.mark.parametrize("stop_at", [1, 5])
def test_a_stop_string_ends_the_text_before_it_in_both_modes(client: httpx.Client, stop_at: int) -> None:
    body = {"prompt": "stop me", "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    full = client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    stop = full[stop_at : stop_at + 4]
    expected = full[: full.index(stop)]
    cut = client.post(COMPLETIONS, json={**body, "stop": stop}).json()["choices"][0]
    assert (cut["text"], cut["finish_reason"], cut["stop_reason"]) == (expected, "stop", stop)
    chunks = stream(client, COMPLETIONS, {**body, "stop": [stop, "never"]})
    assert texts_by_index(chunks)[0] == expected
    kept = client.post(COMPLETIONS, json={**body, "stop": [stop], "include_stop_str_in_output": True}).json()
    assert kept["choices"][0]["text"] == expected + stop


def test_b40_a_stop_does_not_act_before_min_tokens(client: httpx.Client) -> None:
    body = {"prompt": "stop me", "temperature": 0, "max_tokens": 20, "min_tokens": 10}
    text = client.post(COMPLETIONS, json={**body, "ignore_eos": True}).json()["choices"][0]["text"]
    for stop in ({"stop": text[1]}, {"stop_token_ids": ByteTokenizer().encode(text[1])}):
        usage = client.post(COMPLETIONS, json={**body, **stop}).json()["usage"]
        assert 10 <= usage["completion_tokens"] <= 20


def test_the_openai_client_answers_streams_and_raises() -> None:
    with ServerProcess("--api-key", "secret", "--served-model-name", "org/toy") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as api:
            assert [model.id for model in api.models.list()] == ["org/toy"]
            answer = api.chat.completions.create(
                model="org/toy", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=9, seed=3
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            assert answer.choices[0].finish_reason in ("stop", "length")
            chunks = api.chat.completions.create(
                model="org/toy",
                messages=[{"role": "user", "content": "hi"}],
                max_completion_tokens=9,
                seed=3,
                stream=True,
                stream_options={"include_usage": True},
            )
            streamed = list(chunks)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
            assert text == answer.choices[0].message.content
            assert streamed[-1].usage is not None
            assert streamed[-1].usage.completion_tokens == answer.usage.completion_tokens
            completion = api.completions.create(model="org/toy", prompt=["a", "b"], max_tokens=3)
            assert [choice.index for choice in completion.choices] == [0, 1]
            with pytest.raises(openai.NotFoundError):
                api.completions.create(model="gpt-4", prompt="x")
            with pytest.raises(openai.BadRequestError, match="temperature"):
                api.completions.create(model="org/toy", prompt="x", temperature=-1)
        stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        assert "secret" not in "\n".join([*server.log, *server.announcement])
        assert "$CHAIRLIFT_API_KEY" in server.announcement[-1]
