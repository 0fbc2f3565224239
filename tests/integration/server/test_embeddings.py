"""POST /v1/embeddings as OpenAI's client and others send it, to a server process on the fake executor."""

import base64
import math
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from chairlift.engine.byte_tokenizer import VOCAB_SIZE, ByteTokenizer
from chairlift.execution.fake.embeddings import EMBEDDING_SIZE, reference_embedding
from tests.integration.server.server_process import ServerProcess, wait_until

TOKENIZER = ByteTokenizer()
EMBEDDINGS = "/v1/embeddings"


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def mean_server() -> Iterator[ServerProcess]:
    with ServerProcess("--pooling-type", "mean", "--matryoshka", "--max-embedding-inputs", "3") as process:
        yield process


def truth(
    token_ids: list[int], pooling: str = "last", dimensions: int | None = None, scale: bool = True
) -> list[float]:
    raw = reference_embedding(token_ids, pooling)
    vector = struct.unpack(f"<{len(raw) // 4}f", raw)[:dimensions]
    length = math.sqrt(sum(number**2 for number in vector)) if scale else 1.0
    return [number / length for number in vector]


def is_close(vector: Any) -> Any:
    return pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
@pytest.mark.parametrize(
    "given",
    ["hello", ["hello", "a €5 note"], [104, 101, 108], [[104, 101], [108, 108, 111]]],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_openai_gets_vectors_of_every_form_of_input(sdk: openai.OpenAI, given: Any, encoding: Any) -> None:
    asked = {} if encoding is None else {"encoding_format": encoding}
    answer = sdk.embeddings.create(model="fake", input=given, user="me", **asked)
    prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    token_ids = [TOKENIZER.encode(one) if isinstance(one, str) else one for one in prompts]
    assert (answer.object, answer.model) == ("list", "fake")
    assert [one.index for one in answer.data] == list(range(len(prompts)))
    for one, ids in zip(answer.data, token_ids, strict=True):
        assert one.object == "embedding"
        vector: Any = one.embedding
        if isinstance(vector, str):  # asked for, and so not decoded by the client
            vector = struct.unpack(f"<{EMBEDDING_SIZE}f", base64.b64decode(vector))
        assert list(vector) == is_close(truth(ids))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, token_ids))


def test_more_inputs_than_slots_keep_their_order_and_are_counted(sdk: openai.OpenAI, server: ServerProcess) -> None:
    before = {name: server.metric(name) for name in METRICS}
    texts = [f"text number {number} " * (1 + number % 7) for number in range(300)]
    answer = sdk.embeddings.create(model="fake", input=texts)
    for one, text in zip(answer.data, texts, strict=True):
        assert one.embedding == is_close(truth(TOKENIZER.encode(text)))
    wait_until(server.is_idle, within_s=10)
    counted = {name: server.metric(name) - before[name] for name in METRICS}
    assert counted == dict(zip(METRICS, (300, 300, 300, 0, answer.usage.prompt_tokens), strict=True))


METRICS = (
    "chairlift_embeddings_total",
    "chairlift_requests_received_total",
    'chairlift_requests_finished_total{reason="stop"}',
    "chairlift_generation_tokens_total",
    "chairlift_prompt_tokens_total",
)


def test_vectors_are_scaled_unless_that_is_not_wanted(client: httpx.Client) -> None:
    raw = client.post(EMBEDDINGS, json={"input": "hello", "normalize": False}).json()["data"][0]["embedding"]
    assert raw == is_close(truth(TOKENIZER.encode("hello"), scale=False))


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input", "empty"),
        ({"input": [[]]}, "input", "empty"),
        ({"input": [[1], []]}, "input", "empty"),
        ({"input": [VOCAB_SIZE]}, "input", f"token id {VOCAB_SIZE} is not in"),
        ({"input": [[1], [-1]]}, "input", "token id -1"),
        ({"input": [1.5]}, "input", ""),
        ({"input": ["a", 1]}, "input", ""),
        ({"input": None}, "input", ""),
        ({"input": "x" * 2049}, "input", "2049 tokens, but the model length is 2048"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", ""),
        ({"input": "x", "dimensions": 4}, "dimensions", "--matryoshka"),
        ({"input": "x", "dimensions": 0}, "dimensions", ""),
        ({"input": "x", "dimensions": EMBEDDING_SIZE + 1}, "dimensions", f"have {EMBEDDING_SIZE}"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "nothing would be left"),
        ({"input": "x", "truncate_prompt_tokens": 2049}, "truncate_prompt_tokens", "2048"),
        ({"input": "x", "model": "gpt"}, "model", "does not exist"),
        ({"input": "x", "temperature": 1.0}, "temperature", "unknown field"),
        ({"input": "x", "n": 2}, "n", "unknown field"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(client: httpx.Client, fields: dict[str, Any], param: str, said: str) -> None:
    answer = client.post(EMBEDDINGS, json=fields)
    assert answer.status_code == (404 if param == "model" else 400), answer.text
    error = answer.json()["error"]
    assert error["param"].split("[")[0] == param
    assert said in error["message"]


def test_an_input_may_fill_the_model_length_and_is_cut_where_that_is_asked_for(client: httpx.Client) -> None:
    text = "".join(chr(97 + place % 26) for place in range(2100))
    ids = TOKENIZER.encode(text)
    for asked, kept in (
        ({"truncate_prompt_tokens": -1}, ids[-2048:]),
        ({"truncate_prompt_tokens": 5}, ids[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, ids[:5]),
    ):
        answer = client.post(EMBEDDINGS, json={"input": text, **asked}).json()
        assert answer["data"][0]["embedding"] == is_close(truth(kept))
        assert answer["usage"]["prompt_tokens"] == len(kept)
    assert client.post(EMBEDDINGS, json={"input": text[:2048]}).status_code == 200


def test_fields_of_the_scheduler_count_here_too(client: httpx.Client) -> None:
    asked = {"input": "hello", "priority": 2, "deadline_ms": 60_000, "cache_salt": "s", "service_tier": "flex"}
    answer = client.post(EMBEDDINGS, json={**asked, "store": True})
    assert answer.status_code == 200
    assert answer.headers["X-Chairlift-Ignored-Fields"] == "store"
    assert answer.headers["X-Chairlift-Request-Id"].startswith("embd-")
    late = client.post(EMBEDDINGS, json={"input": ["x" * 2000] * 40, "deadline_ms": 0.01})
    assert late.status_code in (503, 504), late.text


def test_a_client_that_leaves_takes_its_requests_with_it(client: httpx.Client, server: ServerProcess) -> None:
    aborted = 'chairlift_requests_finished_total{reason="abort"}'
    before = server.metric(aborted)
    asked = client.build_request("POST", EMBEDDINGS, json={"input": [f"{number:3} " * 400 for number in range(250)]})
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
        connection.sendall(f"POST {EMBEDDINGS} HTTP/1.1\r\n{head}\r\n".encode() + asked.content)
        wait_until(lambda: server.metric("chairlift_num_requests_running") > 0, within_s=10)
    wait_until(server.is_idle, within_s=5)
    assert server.metric(aborted) > before


def test_the_operator_chooses_the_pooling_whether_vectors_may_be_cut_and_how_many_there_are(
    mean_server: ServerProcess,
) -> None:
    with httpx.Client(base_url=mean_server.url, timeout=30) as client:
        text = "some text that is long enough for chunks " * 20
        for dimensions in (None, 4, EMBEDDING_SIZE):
            answer = client.post(EMBEDDINGS, json={"input": [text, text], "dimensions": dimensions}).json()
            for one in answer["data"]:
                assert one["embedding"] == is_close(truth(TOKENIZER.encode(text), "mean", dimensions))
        refused = client.post(EMBEDDINGS, json={"input": ["a", "b", "c", "d"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        assert "--max-embedding-inputs is 3" in refused.text
