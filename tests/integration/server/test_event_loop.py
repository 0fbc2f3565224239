"""No request keeps the event loop from others: the smallest answer there is, asked for while large ones come and go."""

import json

import httpx
import pytest

from tests.integration.server.raw_http import Heartbeat
from tests.integration.server.server_process import ServerProcess

MIB = 2**20
LONGEST_WAIT_S = 0.05
ROUNDS = 6
NUM_SHORT = 2
"""So many of the rounds must be short: a busy machine delays some, a loop that stands still delays all."""
BODY_BYTES = 4 * MIB - 200


def text(unit: str) -> bytes:
    encoded = unit.encode()
    return b'{"prompt":"' + encoded * (BODY_BYTES // len(encoded)) + b'"}'


def encoded(**body: object) -> bytes:
    return json.dumps(body).encode()


def listed(item: bytes, count: int, field: bytes = b"prompt") -> bytes:
    return b'{"prompt":"a","' + field + b'":[' + b",".join([item] * count) + b"]}"


HELLO = [{"role": "user", "content": "hi"}]
TURNS = HELLO * 10_000
NAMES = [f"property_{n}" for n in range(400)]
SCHEMA = {"type": "object", "properties": {name: {"type": "integer"} for name in NAMES}, "required": NAMES}
FORM = {"type": "json_schema", "json_schema": {"name": "large", "schema": SCHEMA}}
ARGUMENTS = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(4)}, "required": ["p0"]}
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "x" * 50, "parameters": ARGUMENTS}}
    for n in range(340)
]
HEAVY = {"n": 16, "max_tokens": 100, "ignore_eos": True}
BODIES = {
    "text": ("/v1/completions", text("abcd ")),
    "characters of three bytes": ("/v1/completions", text("漢")),
    "escapes": ("/v1/completions", text("\\n")),
    "text as long as a prompt may be": ("/v1/completions", b'{"prompt":"' + b"hello world " * (MIB // 12) + b'"}'),
    "punctuation in a text": ("/v1/completions", text("a,[{:")),
    "token ids": ("/v1/completions", listed(b"12345", 199_000)),
    "too many token ids": ("/v1/completions", listed(b"1", BODY_BYTES // 2 - 20)),
    "too many objects": ("/v1/completions", listed(b"{}", BODY_BYTES // 3 - 20, b"metadata")),
    "many keys": ("/v1/completions", b'{"prompt":"a",' + b",".join(b'"k%d":1' % i for i in range(50_000)) + b"}"),
    "depth": ("/v1/completions", b'{"prompt":"a","metadata":' + b"[" * MIB + b"]" * MIB + b"}"),
    "many prompts": ("/v1/completions", json.dumps({"prompt": [[1] * 1000] * 190, "max_tokens": 1}).encode()),
    "many messages": ("/v1/chat/completions", encoded(messages=TURNS)),
    "many items of /v1/responses": ("/v1/responses", encoded(input=TURNS, max_output_tokens=1)),
    "many messages of /v1/messages": ("/v1/messages", encoded(messages=TURNS, max_tokens=1)),
    "many texts for vectors": ("/v1/embeddings", encoded(input=[f"text {n}" for n in range(2048)])),
    "a long text for a vector": ("/v1/embeddings", encoded(input="hello world " * (MIB // 12))),
    "many tools": (
        "/v1/chat/completions",
        encoded(messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=3),
    ),
    "a large schema": ("/v1/chat/completions", encoded(messages=HELLO, response_format=FORM, max_tokens=3)),
    "many choices with many log-probabilities": ("/v1/completions", encoded(prompt="x", logprobs=20, **HEAVY)),
    "the same of a chat, streamed": (
        "/v1/chat/completions",
        encoded(messages=HELLO, logprobs=True, top_logprobs=20, stream=True, **HEAVY),
    ),
    "log-probabilities of a long prompt": (
        "/v1/completions",
        encoded(prompt=[1] * 1200, prompt_logprobs=20, echo=True, logprobs=20, max_tokens=1),
    ),
    "tokenizing": ("/tokenize", b'{"return_token_strs":true,"prompt":"' + b"hello world " * 20_000 + b'"}'),
    "not JSON": ("/v1/completions", b'{"prompt":"' + b"abcd " * (BODY_BYTES // 5)),
    "a number without end": ("/v1/completions", b'{"prompt":"a","seed":' + b"1" * (3 * MIB) + b"}"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_large_request_keeps_nobody_waiting(name: str, server: ServerProcess) -> None:
    path, body = BODIES[name]
    worst: list[float] = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(ROUNDS):
            with Heartbeat.watching(server) as heartbeat:
                assert client.post(path, content=body).status_code in (200, 400, 413)
            worst.append(heartbeat.worst_stall_s)
            if sum(wait_s < LONGEST_WAIT_S for wait_s in worst) == NUM_SHORT:
                return
    pytest.fail(f"the loop stood still for {worst} s")
