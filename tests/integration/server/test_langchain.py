"""LangChain's classes for OpenAI against the server: answers, streams, tools, structured output and vectors."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from tests.integration.server.server_process import ServerProcess


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    from langchain_openai import ChatOpenAI

    with ServerProcess("--tool-call-parser", "hermes", "--api-key", "secret") as process:
        yield ChatOpenAI(
            model="fake",
            base_url=f"{process.url}/v1",
            api_key=SecretStr("secret"),
            max_completion_tokens=600,
            temperature=0,
            max_retries=0,
        )


def test_langchain_answers_and_streams_the_same(model: Any) -> None:
    answer = model.invoke("hello")
    assert answer.content
    assert "".join(chunk.content for chunk in model.stream("hello")) == answer.content
    assert answer.usage_metadata["output_tokens"] > 0


def test_langchain_completes_and_streams_the_same(model: Any) -> None:
    from langchain_openai import OpenAI

    completer = OpenAI(
        model="fake",
        base_url=model.openai_api_base,
        api_key=SecretStr("secret"),
        max_tokens=24,
        temperature=0,
        max_retries=0,
        extra_body={"ignore_eos": True},
    )
    text = completer.invoke("once upon a time")
    assert text
    assert "".join(completer.stream("once upon a time")) == text
    both = completer.generate(["once upon a time", "the end"])
    assert both.generations[0][0].text == text != both.generations[1][0].text
    assert both.llm_output is not None
    assert both.llm_output["token_usage"]["completion_tokens"] == 48


def test_langchain_calls_tools_and_sends_what_they_return(model: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    def get_weather(city: str) -> str:
        """Look outside."""
        return f"rain in {city}"

    forced = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False, strict=True)
    question = HumanMessage("hello")
    answer = forced.invoke([question])
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    assert set(call["args"]) == {"city"}
    returned = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    assert model.bind_tools([get_weather]).invoke([question, answer, returned]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_the_form_that_it_asks_for(model: Any, method: str) -> None:
    person = model.with_structured_output(Person, method=method).invoke("hello")
    assert isinstance(person, Person)


def test_langchain_gets_vectors(model: Any) -> None:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        model="fake",
        base_url=model.openai_api_base,
        api_key=SecretStr("secret"),
        check_embedding_ctx_length=False,  # it would count tokens of OpenAI's models
        max_retries=0,
    )
    vectors = embeddings.embed_documents(["hello", "good bye"])
    assert vectors[0] == pytest.approx(embeddings.embed_query("hello"))
    assert vectors[0] != vectors[1]
    assert sum(number**2 for number in vectors[1]) == pytest.approx(1)
