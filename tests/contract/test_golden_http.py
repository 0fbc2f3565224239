"""Bodies, byte for byte, as clients see them. ``pytest tests/contract --update-golden`` writes them anew.

Streams have one token here, because later ones may share a chunk when a reader is slow.
"""

import json
import re
from pathlib import Path

import httpx
import pytest

GOLDEN = Path(__file__).parent / "golden"
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
GREEDY = {"model": "toy", "temperature": 0, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}
HEADERS = ("content-type", "retry-after", "allow", "x-request-id", "cache-control")

CASES: dict[str, tuple[str, str, object]] = {
    "completion": ("POST", "/v1/completions", {**GREEDY, "prompt": "hello", "max_tokens": 8}),
    "completion-choices": (
        "POST",
        "/v1/completions",
        {"model": "toy", "prompt": ["a", "b"], "n": 2, "seed": 1, "max_tokens": 4, "ignore_eos": True},
    ),
    "completion-echo": ("POST", "/v1/completions", {**GREEDY, "prompt": "a b", "echo": True, "max_tokens": 0}),
    "completion-stop-token": (
        "POST",
        "/v1/completions",
        {**GREEDY, "prompt": "hello", "max_tokens": 50, "stop_token_ids": list(range(97, 123))},
    ),
    "completion-stream": ("POST", "/v1/completions", {**GREEDY, "prompt": "hello", "max_tokens": 1, "stream": True}),
    "completion-stream-usage": (
        "POST",
        "/v1/completions",
        {**GREEDY, "prompt": "hello", "echo": True, "max_tokens": 1, "stream": True, **USAGE},
    ),
    "chat": ("POST", "/v1/chat/completions", {**GREEDY, "messages": HELLO, "max_tokens": 8}),
    "chat-stream": ("POST", "/v1/chat/completions", {**GREEDY, "messages": HELLO, "max_tokens": 1, "stream": True}),
    "chat-stream-usage": (
        "POST",
        "/v1/chat/completions",
        {**GREEDY, "messages": HELLO, "max_tokens": 1, "stream": True, **USAGE},
    ),
    "models": ("GET", "/v1/models", None),
    "model": ("GET", "/v1/models/toy", None),
    "tokenize": ("POST", "/tokenize", {"prompt": "hé", "return_token_strs": True}),
    "detokenize": ("POST", "/detokenize", {"tokens": [104, 195, 169]}),
    "health": ("GET", "/health", None),
    "version": ("GET", "/version", None),
    "error-json": ("POST", "/v1/completions", '{"prompt": '),
    "error-missing": ("POST", "/v1/chat/completions", {"model": "toy"}),
    "error-type": ("POST", "/v1/completions", {"prompt": "x", "max_tokens": "ten"}),
    "error-nan": ("POST", "/v1/completions", '{"prompt": "x", "temperature": NaN}'),
    "error-range": ("POST", "/v1/completions", {"prompt": "x", "top_p": 0}),
    "error-unknown-field": ("POST", "/v1/completions", {"prompt": "x", "max_token": 5}),
    "error-unsupported-field": ("POST", "/v1/completions", {"prompt": "x", "suffix": "y"}),
    "error-choices": ("POST", "/v1/completions", {"prompt": "x", "n": 5}),
    "error-token-id": ("POST", "/v1/completions", {"prompt": [1, 999]}),
    "error-too-long": ("POST", "/v1/completions", {"prompt": "x" * 64, "stream": True}),
    "error-model": ("POST", "/v1/completions", {"prompt": "x", "model": "no-such"}),
    "error-deadline": ("POST", "/v1/completions", {"prompt": "x", "deadline_ms": -5}),
    "error-deadlines": ("POST", "/v1/completions", {"prompt": "x", "ttft_deadline_ms": 9, "deadline_ms": 5}),
    "error-request": ("GET", "/v1/requests/no-such", None),
    "error-administration": ("PATCH", "/admin/scheduler", {"watermark": 0.1}),
    "error-path": ("GET", "/v1/nothing", None),
    "error-method": ("GET", "/v1/completions", None),
    "error-body-size": ("POST", "/v1/completions", {"prompt": "x" * 5000}),
}


def show(response: httpx.Response) -> str:
    """Status, the headers that count, and the body without what differs from run to run."""
    body = re.sub(r'(cmpl|chatcmpl)-[0-9a-f]{32}"', r'\1-ID"', response.text)
    body = re.sub(r'"created":\d+', '"created":0', body)
    body = re.sub(r'"created_at":"[^"]+"', '"created_at":"TIME"', body)
    body = re.sub(r'"version":"[^"]+"', '"version":"VERSION"', body)
    headers = [f"{name}: {response.headers[name]}" for name in HEADERS if name in response.headers]
    return "\n".join([str(response.status_code), *headers, "", body]).rstrip("\n") + "\n"


@pytest.mark.parametrize("name", CASES)
def test_what_clients_see_does_not_change(name: str, client: httpx.Client, request: pytest.FixtureRequest) -> None:
    method, path, body = CASES[name]
    if isinstance(body, dict) and path in ("/v1/completions", "/v1/chat/completions"):
        body = {**body, "cache_salt": name}
    content = body if isinstance(body, str) or body is None else json.dumps(body)
    shown = show(client.request(method, path, content=content, headers={"X-Request-Id": name}))
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(shown)
    assert shown == file.read_text()


def test_every_golden_file_has_its_case() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(CASES)
