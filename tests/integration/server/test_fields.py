"""Sampling and completion fields as OpenAI's client sends them, to a server process on the fake executor.

What the toy model finds likely is known exactly: the token it would say has probability 1/2, the one after it in the
vocabulary 1/4, and so on. Case numbers are those of the issue list of comparable engines.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from chairlift.engine.byte_tokenizer import END_ID, VOCAB_SIZE, ByteTokenizer
from chairlift.engine.fake_model import readable_token
from tests.integration.server.server_process import ServerProcess
from tests.integration.server.test_requests import CHAT, COMPLETIONS, HELLO, stream, texts_by_index

TOKENIZER = ByteTokenizer()
CHAT_PROMPT = TOKENIZER.encode(TOKENIZER.apply_chat_template(HELLO))
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
UNSEEDED = 5
"""Requests beside those with a seed."""


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def expected_logprob(context: list[int], token_id: int) -> float:
    return -((token_id - readable_token(context, VOCAB_SIZE, 0)) % VOCAB_SIZE + 1) * math.log(2)


def token_text(token_id: int) -> str:
    piece = TOKENIZER.token_bytes(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def test_chat_logprobs_have_the_texts_bytes_and_are_the_same_streamed(sdk: openai.OpenAI) -> None:
    asked: Any = {
        "model": "fake", "messages": HELLO, "logprobs": True, "top_logprobs": 3, "max_tokens": 12, "seed": 3,
        "temperature": 0.8, "extra_body": {"return_token_ids": True, "ignore_eos": True}, "presence_penalty": 1.5,
    }  # fmt: skip
    choice = sdk.chat.completions.create(**asked).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    ids = choice.model_extra["token_ids"]  # type: ignore[index]
    assert len(content) == len(ids) == 12
    assert bytes(byte for entry in content for byte in entry.bytes or ()).decode() == choice.message.content
    for place, (token_id, entry) in enumerate(zip(ids, content, strict=True)):
        context = CHAT_PROMPT + ids[:place]
        assert entry.logprob == pytest.approx(expected_logprob(context, token_id))
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx([-math.log(2) * k for k in (1, 2, 3)])
        assert entry.top_logprobs[0].token == token_text(readable_token(context, VOCAB_SIZE, 0))
    streamed = [
        entry
        for chunk in sdk.chat.completions.create(stream=True, **asked)
        for part in chunk.choices
        if part.logprobs
        for entry in part.logprobs.content or ()
    ]
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in content]


@pytest.mark.parametrize("prompt", ["a €5 note: ", [104, 105, 226, 130, 172]], ids=["text", "ids"])
@pytest.mark.parametrize("logprobs", [0, 2])
def test_completion_logprobs_with_echo_cover_prompt_and_output(
    client: httpx.Client, prompt: str | list[int], logprobs: int
) -> None:
    body = {"prompt": prompt, "max_tokens": 6, "logprobs": logprobs, "echo": True, "return_token_ids": True, **GREEDY}
    choice = client.post(COMPLETIONS, json=body).json()["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    found = choice["logprobs"]
    assert {len(values) for values in found.values()} == {len(ids)}
    assert found["tokens"] == [token_text(token_id) for token_id in ids]
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    for place in range(1, len(ids)):
        assert found["token_logprobs"][place] == pytest.approx(expected_logprob(ids[:place], ids[place]))
        assert len(found["top_logprobs"][place]) in (logprobs, logprobs + 1)
        assert found["top_logprobs"][place][found["tokens"][place]] == found["token_logprobs"][place]
    # An offset is where in the text the token's character begins; the euro sign takes three tokens.
    for token_id, offset in zip(ids, found["text_offset"], strict=True):
        assert choice["text"][offset].encode().find(TOKENIZER.token_bytes(token_id)) >= 0
    chunks = stream(client, COMPLETIONS, body)
    assert texts_by_index(chunks) == {0: choice["text"]}
    parts = [part["logprobs"] for chunk in chunks for part in chunk["choices"] if part["logprobs"]]
    assert {name: [value for part in parts for value in part[name]] for name in found} == found


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("streamed", [False, True])
def test_b42_echo_of_a_prompt_without_output(client: httpx.Client, streamed: bool, logprobs: int | None) -> None:
    body = {"prompt": "a b", "echo": True, "max_tokens": 0, "logprobs": logprobs, "n": 2, "return_token_ids": True}
    options = {"stream_options": {"include_usage": True}}
    chunks = (
        stream(client, COMPLETIONS, {**body, **options}) if streamed else [client.post(COMPLETIONS, json=body).json()]
    )
    assert texts_by_index(chunks) == {0: "a b", 1: "a b"}
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 0, 3)
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert (choice["token_ids"], choice["finish_reason"]) == ([], "length")
        if logprobs is not None:
            assert choice["logprobs"]["tokens"] == ["a", " ", "b"]
            assert choice["logprobs"]["text_offset"] == [0, 1, 2]
            assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
                [expected_logprob([97], 32), expected_logprob([97, 32], 98)]
            )


def test_b60_prompt_logprobs_are_complete_with_a_cached_prefix(client: httpx.Client) -> None:
    body = {"prompt": "p" * 100, "max_tokens": 2, "prompt_logprobs": 1, "cache_salt": "b60", **GREEDY}
    client.post(COMPLETIONS, json={**body, "prompt_logprobs": None})
    first, second = (client.post(COMPLETIONS, json=body).json() for _ in range(2))
    found = first["choices"][0]["prompt_logprobs"]
    assert found == second["choices"][0]["prompt_logprobs"]
    assert (len(found), found[0]) == (100, None)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for place in range(1, 100):
        entry = found[place][str(ord("p"))]
        assert entry["logprob"] == pytest.approx(expected_logprob([ord("p")] * place, ord("p")))
        assert entry["decoded_token"] == "p"
        assert len(found[place]) in (1, 2)
    chat = client.post(CHAT, json={"messages": HELLO, "max_tokens": 1, "prompt_logprobs": 0, "n": 2}).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] == len(CHAT_PROMPT)


def test_b62_a_long_prompt_in_chunks_has_one_entry_for_each_token(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 1300}], "logprobs": True, "max_tokens": 9, **GREEDY}
    # Special tokens have no text, but they have an entry.
    body |= {"logit_bias": {"258": 100}, "cache_salt": "b62"}
    chunks = stream(client, CHAT, body)
    parts = [part for chunk in chunks for part in chunk["choices"]]
    entries = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert [entry["token"] for entry in entries] == ["<|user|>"] * 9
    assert texts_by_index(chunks) == {0: ""}


def test_bias_allowed_tokens_and_bad_words(client: httpx.Client) -> None:
    def text(**options: object) -> str:
        body = {"prompt": "say ", "max_tokens": 30, **GREEDY, **options}
        return client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]

    plain = text()
    assert text(logit_bias={str(ord("z")): 100}) == "z" * 30
    assert set(text(allowed_token_ids=[ord("a"), ord("b")])) <= {"a", "b"}
    word = plain[3:6]
    assert word not in text(bad_words=[word])
    assert plain[:5] == text(bad_words=[word])[:5]
    assert text(bad_words=["q" * 50]) == plain


@pytest.mark.parametrize(
    "body", [{"allowed_token_ids": [120], "bad_words": ["x"]}, {"bad_words": [" "]}, {"bad_words": ["x", "\n "]}]
)
def test_b55_what_leaves_nothing_to_say_is_refused(client: httpx.Client, body: dict) -> None:
    response = client.post(COMPLETIONS, json={"prompt": "x", **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] in body


def test_b55_what_leaves_nothing_to_say_later_ends_with_an_error(client: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 20, "allowed_token_ids": [END_ID], "min_tokens": 5, "temperature": 0}
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == 400
    assert "no token that could come next is permitted" in response.json()["error"]["message"]
    with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as streamed:
        *events, done = [line for line in streamed.iter_lines() if line]
    assert done == "data: [DONE]"
    assert "no token that could come next is permitted" in events[-1]


def test_b57_a_seeded_request_repeats_itself_beside_others_without_a_seed(
    client: httpx.Client, server: ServerProcess
) -> None:
    body = {"prompt": "dice: ", "max_tokens": 12, "temperature": 0.9, "ignore_eos": True}

    def seeded(**options: object) -> list[str]:
        choices = client.post(COMPLETIONS, json={**body, "seed": 5, **options}).json()["choices"]
        return [choice["text"] for choice in choices]

    alone, three = seeded(), seeded(n=3)
    assert len(set(three)) == 3
    assert three[0] == alone[0]
    with ExitStack() as beside:
        streamed = {**body, "max_tokens": 2000, "stream": True}
        opened = [beside.enter_context(client.stream("POST", COMPLETIONS, json=streamed)) for _ in range(UNSEEDED)]
        lines = [response.iter_lines() for response in opened]  # a response would be closed with its iterator
        assert all(next(line).startswith("data: ") for line in lines)
        for _ in range(4):
            chunks = stream(client, COMPLETIONS, {**body, "prompt": ["dice: ", "dice: "], "seed": 5})
            assert texts_by_index(chunks)[0] == alone[0]
            assert seeded() == alone
            assert seeded(n=3) == three
        # All of them ran from before the first of these answers until after the last one.
        assert server.metric("chairlift_num_requests_running") == UNSEEDED
        del lines
    assert seeded() == alone


@pytest.mark.parametrize("n", [1, 3])
def test_b59_no_choice_has_a_bad_word(client: httpx.Client, n: int) -> None:
    body = {"prompt": "letters: ", "max_tokens": 60, "n": n, "seed": 9, "temperature": 1, "ignore_eos": True}
    before = client.post(COMPLETIONS, json=body).json()["choices"]
    letter = min(set[str].intersection(*(set(choice["text"]) for choice in before)) - {" "})
    after = client.post(COMPLETIONS, json={**body, "bad_words": [letter, "xyz"]}).json()["choices"]
    assert len(after) == n
    assert not any(letter in choice["text"] for choice in after)


def test_best_of_answers_the_likeliest_choices(sdk: openai.OpenAI) -> None:
    asked: Any = {"model": "fake", "prompt": "best: ", "max_tokens": 8, "seed": 4, "extra_body": {"ignore_eos": True}}
    every = sdk.completions.create(n=5, logprobs=0, **asked)
    best = sdk.completions.create(n=2, best_of=5, **asked)

    def mean(choice: Any) -> float:
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ranked = sorted(every.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.choices[0].logprobs is None
    assert best.usage is not None
    assert best.usage.completion_tokens == 40


@pytest.mark.parametrize("include", [False, True])
def test_b36_nothing_of_a_stop_is_sent_and_nothing_is_lost(client: httpx.Client, include: bool) -> None:
    body = {"prompt": "stop soon: ", "max_tokens": 80, **GREEDY}
    plain = client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    for stop in (plain[20:25], plain[22:23], plain[78:80], "never said"):
        stopping = {**body, "stop": [stop, "no such text"], "include_stop_str_in_output": include}
        whole = client.post(COMPLETIONS, json=stopping).json()["choices"][0]
        end = plain.find(stop)
        expected = plain if end < 0 else plain[: end + len(stop) if include else end]
        assert (whole["text"], whole["finish_reason"]) == (expected, "length" if end < 0 else "stop")
        assert whole["stop_reason"] == (None if end < 0 else stop)
        chunks = stream(client, COMPLETIONS, stopping)
        assert texts_by_index(chunks) == {0: expected}
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_truncation_keeps_one_side_of_a_prompt(client: httpx.Client) -> None:
    def shown(**options: object) -> tuple[str, int]:
        body = {"prompt": "0123456789", "max_tokens": 0, "echo": True, **options}
        answer = client.post(COMPLETIONS, json=body).json()
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]

    assert shown(truncate_prompt_tokens=3) == ("789", 3)
    assert shown(truncate_prompt_tokens=3, truncation_side="right") == ("012", 3)
    assert shown(truncate_prompt_tokens=50) == ("0123456789", 10)
    body = {"messages": [{"role": "user", "content": "long" * 2000}], "max_tokens": 7, "ignore_eos": True}
    assert client.post(CHAT, json=body).status_code == 400
    usage = client.post(CHAT, json={**body, "truncate_prompt_tokens": -1}).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2048 - 7, 7)


def test_token_ids_are_shown_whole_and_streamed(client: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 9, "return_token_ids": True, "seed": 1}
    whole = client.post(CHAT, json=body).json()
    assert whole["prompt_token_ids"] == CHAT_PROMPT
    chunks = stream(client, CHAT, body)
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [CHAT_PROMPT]
    streamed = [t for chunk in chunks for part in chunk["choices"] for t in part.get("token_ids", ())]
    assert streamed == whole["choices"][0]["token_ids"]
    named = client.post(CHAT, json={**body, "logprobs": True, "return_tokens_as_token_ids": True}).json()
    tokens = [entry["token"] for entry in named["choices"][0]["logprobs"]["content"]]
    assert tokens == [f"token_id:{token_id}" for token_id in streamed]


def test_a_service_tier_is_told_as_it_was_granted(client: httpx.Client, sdk: openai.OpenAI) -> None:
    for asked, granted in (("auto", "default"), ("flex", "flex"), ("priority", "default")):
        answer = sdk.chat.completions.create(model="fake", messages=HELLO, max_tokens=2, service_tier=asked)  # type: ignore[call-overload]
        assert answer.service_tier == granted
        body = {"prompt": "x", "max_tokens": 2, "service_tier": asked}
        assert {chunk["service_tier"] for chunk in stream(client, COMPLETIONS, body)} == {granted}
    assert "service_tier" not in client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1}).json()


def test_ignored_fields_are_named(client: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 1, "store": True, "metadata": {"a": "b"}, "prediction": None}
    response = client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "mine"})
    assert response.headers["x-chairlift-ignored-fields"] == "metadata, store"
    assert response.headers["x-request-id"] == "mine"
