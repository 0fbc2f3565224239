"""LiteLLM against the server, as people route to it: answers, streams, tools and vectors."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.execution.fake.embeddings import EMBEDDING_SIZE, reference_embedding
from tests.integration.server.server_process import ServerProcess

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    # It asks for this thread's event loop, which would be made and never closed.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with pytest.MonkeyPatch.context() as patch:
        # Its table of prices comes with it; nothing is to be fetched.
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

    yield litellm
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="module")
def asked() -> Iterator[dict[str, Any]]:
    with ServerProcess("--tool-call-parser", "hermes", "--api-key", "secret") as process:
        yield {"model": "openai/fake", "api_base": f"{process.url}/v1", "api_key": "secret", "num_retries": 0}


def test_litellm_answers_and_streams_the_same(litellm: Any, asked: dict[str, Any]) -> None:
    fields = {**asked, "messages": HELLO, "temperature": 0, "max_tokens": 20}
    answer = litellm.completion(**fields)
    assert answer.choices[0].message.content
    assert 0 < answer.usage.completion_tokens <= 20
    chunks = list(litellm.completion(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_litellm_calls_tools(litellm: Any, asked: dict[str, Any]) -> None:
    answer = litellm.completion(
        **asked, messages=HELLO, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    returned = [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    again = litellm.completion(**asked, messages=[*HELLO, *returned], tools=[WEATHER], max_tokens=5)
    assert again.choices[0].finish_reason in ("stop", "length")


def test_litellm_gets_vectors(litellm: Any, asked: dict[str, Any]) -> None:
    texts = ["hello", "good bye"]
    answer = litellm.embedding(**asked, input=texts, encoding_format="float")
    for one, text in zip(answer.data, texts, strict=True):
        expected = struct.unpack(f"<{EMBEDDING_SIZE}f", reference_embedding(ByteTokenizer().encode(text), "last"))
        length = sum(number**2 for number in expected) ** 0.5
        assert one["embedding"] == pytest.approx([number / length for number in expected], abs=1e-6)
    assert answer.usage.prompt_tokens == sum(len(ByteTokenizer().encode(text)) for text in texts)


def test_litellm_knows_a_refusal_for_what_it_is(litellm: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**asked, "api_key": "wrong"}, messages=HELLO)
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        litellm.completion(**asked, messages=HELLO, max_tokens=-1)
