"""Limits that are settings: what is within is answered, what is beyond is refused with the setting's name.

``--template-timeout`` needs a template and is in tests/unit/server/test_chat_templates.py; limits of connections, of
tenants and of grammars are tried where these are.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.server.server_process import ServerProcess, wait_until
from tests.integration.server.test_requests import CHAT, COMPLETIONS, HELLO

FLAGS = (
    *("--max-body-values", "3000", "--max-prompt-chars", "100", "--max-stop-strings", "2", "--max-logit-bias", "2"),
    *("--max-logprobs", "3", "--allowed-hosts", "api.example,*.inner.example", "--max-choices", "2"),
    *("--max-prompts", "2", "--max-body-bytes", "200000", "--max-embedding-inputs", "2"),
)
SHORT: dict[str, Any] = {"max_tokens": 1}
ONE = {"prompt": "x", **SHORT}
TALK = {"messages": HELLO, **SHORT}
EMBEDDINGS, TOKENIZE, MESSAGES, RESPONSES = "/v1/embeddings", "/tokenize", "/v1/messages", "/v1/responses"
BIAS = {"97": 1.0, "98": 1.0, "99": 1.0}
STOPS = ["never", "said", "here"]


def said(num_chars: int) -> list[Any]:
    """A conversation whose prompt has so many characters, with the marks of the turns."""
    return [{"role": "user", "content": "x" * (num_chars - len("<|user|><|end|><|assistant|>"))}]


def first(items: Any, number: int) -> Any:
    return dict(list(items.items())[:number]) if isinstance(items, dict) else items[:number]


CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # name: the setting, the path, what is just within, what is just beyond
    "prompt": ("--max-prompt-chars", COMPLETIONS, {**SHORT, "prompt": "x" * 100}, {**SHORT, "prompt": "x" * 101}),
    "prompts": ("--max-prompt-chars", COMPLETIONS, {**SHORT, "prompt": ["x", "é" * 100]},
                {**SHORT, "prompt": ["x", "é" * 101]}),
    "chat": ("--max-prompt-chars", CHAT, {**SHORT, "messages": said(100)}, {**SHORT, "messages": said(101)}),
    "message": ("--max-prompt-chars", MESSAGES, {**SHORT, "messages": said(100)}, {**SHORT, "messages": said(101)}),
    "input": ("--max-prompt-chars", RESPONSES, {"input": said(100), "max_output_tokens": 1},
              {"input": said(101), "max_output_tokens": 1}),
    "embedding": ("--max-prompt-chars", EMBEDDINGS, {"input": ["x", "x" * 100]}, {"input": ["x", "x" * 101]}),
    "tokenize": ("--max-prompt-chars", TOKENIZE, {"prompt": "x" * 100}, {"prompt": "x" * 101}),
    "stop": ("--max-stop-strings", COMPLETIONS, {**ONE, "stop": STOPS[:2]}, {**ONE, "stop": STOPS}),
    "stop of a chat": ("--max-stop-strings", CHAT, {**TALK, "stop": STOPS[:2]}, {**TALK, "stop": STOPS}),
    "stop sequences": ("--max-stop-strings", MESSAGES, {**TALK, "stop_sequences": STOPS[:2]},
                       {**TALK, "stop_sequences": STOPS}),
    "bias": ("--max-logit-bias", COMPLETIONS, {**ONE, "logit_bias": first(BIAS, 2)}, {**ONE, "logit_bias": BIAS}),
    "bias of a chat": ("--max-logit-bias", CHAT, {**TALK, "logit_bias": first(BIAS, 2)}, {**TALK, "logit_bias": BIAS}),
    "logprobs": ("--max-logprobs", COMPLETIONS, {**ONE, "logprobs": 3}, {**ONE, "logprobs": 4}),
    "top logprobs": ("--max-logprobs", CHAT, {**TALK, "logprobs": True, "top_logprobs": 3},
                     {**TALK, "logprobs": True, "top_logprobs": 4}),
    "prompt logprobs": ("--max-logprobs", COMPLETIONS, {**ONE, "prompt_logprobs": 3}, {**ONE, "prompt_logprobs": 4}),
    "choices": ("--max-choices", COMPLETIONS, {**ONE, "n": 2}, {**ONE, "n": 3}),
    "choices of a chat": ("--max-choices", CHAT, {**TALK, "n": 2}, {**TALK, "n": 3}),
    "best of": ("--max-choices", COMPLETIONS, {**ONE, "best_of": 2}, {**ONE, "best_of": 3}),
    "several prompts": ("--max-prompts", COMPLETIONS, {**SHORT, "prompt": ["x"] * 2}, {**SHORT, "prompt": ["x"] * 3}),
    "inputs": ("--max-embedding-inputs", EMBEDDINGS, {"input": ["x"] * 2}, {"input": ["x"] * 3}),
    "values": ("--max-body-values", COMPLETIONS, {**ONE, "metadata": [0] * 2900}, {**ONE, "metadata": [0] * 3000}),
    "objects": ("--max-body-values", CHAT, {**TALK, "metadata": [{}] * 300}, {**TALK, "metadata": [{}] * 340}),
    "keys": ("--max-body-values", TOKENIZE, {"prompt": "x", "metadata": {f"k{k}": 0 for k in range(590)}},
             {"prompt": "x", "metadata": {f"k{k}": 0 for k in range(600)}}),
}  # fmt: skip


@pytest.fixture(scope="module")
def limited() -> Iterator[httpx.Client]:
    with ServerProcess(*FLAGS) as process, httpx.Client(base_url=process.url, timeout=60) as client:
        yield client
        wait_until(process.is_idle, within_s=10)
        assert not any("Traceback" in line for line in process.log)


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code in (400, 413), answer.text
    return answer.json()["error"]["message"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_within_a_limit_is_answered_and_what_is_beyond_it_names_the_setting(
    name: str, limited: httpx.Client
) -> None:
    setting, path, within, beyond = CASES[name]
    answer = limited.post(path, json=within)
    assert answer.status_code == 200, answer.text
    assert setting in refusal(limited.post(path, json=beyond))


def test_values_are_counted_in_a_long_body_as_in_a_short_one(limited: httpx.Client) -> None:
    spaces = b" " * 150_000  # such bodies are read in another way
    for name in ("values", "objects", "keys"):
        setting, path, within, beyond = CASES[name]
        assert limited.post(path, content=json.dumps(within).encode() + spaces).status_code == 200
        assert setting in refusal(limited.post(path, content=json.dumps(beyond).encode() + spaces))


def test_commas_and_brackets_in_a_text_are_no_values(limited: httpx.Client) -> None:
    body = {**ONE, "metadata": {"text": "[{,:" * 5000}}
    assert limited.post(COMPLETIONS, json=body).status_code == 200


def test_a_body_is_as_large_as_the_setting_allows(limited: httpx.Client) -> None:
    body = json.dumps(ONE).encode()
    assert limited.post(COMPLETIONS, content=body + b" " * (200_000 - len(body))).status_code == 200
    answer = limited.post(COMPLETIONS, content=body + b" " * (200_001 - len(body)))
    assert answer.status_code == 413
    assert "--max-body-bytes" in refusal(answer)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("api.example", 200),
        ("API.example:8000", 200),
        ("a.inner.example", 200),
        ("a.b.inner.example.", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:9", 200),
        ("inner.example", 403),
        ("evilinner.example", 403),
        ("api.example.evil.example", 403),
        ("other.api.example", 403),
        ("localhost", 403),
    ],
)
def test_only_names_that_are_listed_are_answered(host: str, status: int, limited: httpx.Client) -> None:
    for path in ("/version", "/v1/models"):
        answer = limited.get(path, headers={"Host": host})
        assert answer.status_code == status
        if status == 403:
            assert "--allowed-hosts" in answer.json()["error"]["message"]
