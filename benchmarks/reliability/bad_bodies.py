"""Bodies that no good client sends, without end: broken bytes, wrong types, numbers out of range, great depth.

Knows nothing of a server. Each is drawn from a generator of random numbers, so that a run can be repeated.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"),
    *("/v1/embeddings", "/v1/batches", "/v1/files"),
)

_ODD_NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 2**64, 2**200, -(2**63), 0.5, -0.0, 1e308, 5e-324)
_ODD_WORDS = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"0x10", b"01", b"nul", b"True", b"'x'", b'"\\ud800"')
_ODD_TEXTS = (
    "",
    "\x00",
    "\ufffd",
    "😀" * 50,
    "a" * 5000,
    "\u202e",
    "{{ 1/0 }}",
    "<|im_end|>",
    "../../etc/passwd",
    "\r\n",
)
_FIELDS = (
    *("prompt", "messages", "model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "best_of", "stop"),
    *("stream", "stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "logit_bias", "bad_words"),
    *("allowed_token_ids", "min_tokens", "stop_token_ids", "seed", "priority", "ttft_deadline_ms", "deadline_ms"),
    *("cache_salt", "user", "tools", "tool_choice", "response_format", "structured_outputs", "input", "tokens"),
    *("truncate_prompt_tokens", "chat_template_kwargs", "continue_final_message", "service_tier", "presence_penalty"),
    *("max_completion_tokens", "repetition_penalty", "system", "instructions", "reasoning", "metadata", "nonsense"),
)


def bad_bodies(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield paths and bodies. Some are fine by chance, and generate a few tokens."""
    makers = (_random_bytes, _odd_fields, _odd_fields, _odd_fields, _mutated, _mutated, _odd_word, _deep)
    while True:
        yield rng.choice(PATHS), rng.choice(makers)(rng)


def good_body(rng: random.Random) -> dict[str, Any]:
    """Something to start from."""
    body: dict[str, Any] = rng.choice(
        (
            {"prompt": "hello", "max_tokens": 3},
            {"prompt": [1, 2, 3], "max_tokens": 2, "n": 2},
            {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
            {"input": "hello", "max_output_tokens": 3},
            {"tokens": [1, 2, 3]},
        )
    )
    return dict(body)


def _random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(300))


def _odd_fields(rng: random.Random) -> bytes:
    body = good_body(rng)
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(_FIELDS)] = _odd_value(rng, depth=3)
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _odd_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.choice(_ODD_NUMBERS)
    if kind == 1:
        return rng.choice(_ODD_TEXTS)
    if kind == 2:
        return rng.choice((None, True, False))
    if kind == 3:
        return rng.randrange(-5, 300)
    if kind == 4:
        return rng.random() * 3 - 1
    if kind == 5:
        return [_odd_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    names = (*_FIELDS, *_ODD_TEXTS, "type", "role", "content", "text", "json_schema", "schema", "regex", "5")
    return {rng.choice(names): _odd_value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _mutated(rng: random.Random) -> bytes:
    data = bytearray(json.dumps(good_body(rng)).encode())
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                del data[place : place + rng.randrange(1, 10)]
            case 2:
                data[place:place] = data[: rng.randrange(len(data) + 1)]
            case _:
                data[place:place] = rng.choice((b"\x00", b"[", b"{", b'"', b"\\", b",", b"\xff", b"1" * 400))
        if not data:
            return b""
    return bytes(data)


def _odd_word(rng: random.Random) -> bytes:
    field, word = rng.choice(_FIELDS).encode(), rng.choice(_ODD_WORDS)
    return b'{"prompt": "x", "max_tokens": 2, "%s": %s}' % (field, word)


def _deep(rng: random.Random) -> bytes:
    depth, field = rng.choice((10, 100, 1000, 100_000)), rng.choice(_FIELDS).encode()
    start, end = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return b'{"prompt": "x", "%s": %s1%s}' % (field, start * depth, end * depth)
