"""No request keeps the event loop from others: the smallest answer there is, asked for while large ones come in."""

import json

import httpx
import pytest

from tests.integration.server.raw_http import Heartbeat
from tests.integration.server.server_process import ServerProcess

MIB = 2**20
LONGEST_WAIT_S = 0.05
ROUNDS = 8
BODY_BYTES = 4 * MIB - 200


def text(unit: str) -> bytes:
    encoded = unit.encode()
    return b'{"prompt":"' + encoded * (BODY_BYTES // len(encoded)) + b'"}'


def listed(item: bytes, count: int, field: bytes = b"prompt") -> bytes:
    return b'{"prompt":"a","' + field + b'":[' + b",".join([item] * count) + b"]}"


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
    "many messages": (
        "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": "hi"}] * 10_000}).encode(),
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
            worst.append(heartbeat.worst_s)
            if worst[-1] < LONGEST_WAIT_S:
                return
    # A busy machine delays some rounds; a loop that stands still delays all.
    pytest.fail(f"the loop stood still for {worst} s")
