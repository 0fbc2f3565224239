"""Tools with ``strict`` where the model may choose whether to call: text is free, and calls follow the schema."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from chairlift.config.sections import AnswerSettings, ServerSettings
from chairlift.core.grammar import Grammar
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.engine.fake_model import readable_fitting_token
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import InvalidRequestError
from chairlift.server.app import create_app
from chairlift.server.context import WebSections
from chairlift.server.tools.grammars import Quote, Tool, forced_calls, free_answer, reasoning_rule
from chairlift.server.tools.table import PLAIN_LIST, TOOL_FORMATS
from chairlift.structured.compiler import GrammarCompiler, find_error
from chairlift.structured.masks import GrammarMasks, GrammarState, allowed_tokens
from chairlift.structured.sources import quote_text
from chairlift.structured.vocabulary import build_vocabulary
from tests.unit.server.stub_engine import StubEngine

TOKENIZER = ByteTokenizer()
COMPILER = GrammarCompiler(
    lambda end_tokens: build_vocabulary(TOKENIZER, TOKENIZER.vocab_size, end_tokens),
    max_bytes=100_000,
    timeout_s=10.0,
    end_tokens={END_ID},
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", CITY, is_strict=True), Tool("now", CITY)]


def grammar(
    parser: str, *, max_calls: int | None = None, quote: Quote = quote_text, reasoning: bool = False
) -> Grammar:
    make = TOOL_FORMATS[parser].free
    assert make is not None
    return free_answer(make(TOOLS, max_calls, quote), reasoning_rule("inside", quote) if reasoning else None, "tools")


def num_fitting(held: Grammar, tokens: Sequence[int]) -> int:
    """How many of the tokens the grammar allows, one after the other."""
    masks, state = GrammarMasks(COMPILER), GrammarState(held)
    new: list[int] = []
    for number, token in enumerate(tokens):
        if token not in allowed_tokens(masks.masks([(state, new)])[0]):
            return number
        new = [token]
    return len(tokens)


def fits(held: Grammar, text: str) -> bool:
    tokens = [*TOKENIZER.encode(text), END_ID]
    return num_fitting(held, tokens) == len(tokens)


GOOD = '{"city": "Rome", "days": 3}'
BAD = '{"days": 3}'
CALLS = {
    "hermes": '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
    "llama3_json": '{{"name": "{name}", "parameters": {arguments}}}',
    "mistral": '[TOOL_CALLS][{{"name": "{name}", "arguments": {arguments}}}]',
}


@pytest.mark.parametrize("parser", CALLS)
def test_a_call_follows_the_schema_of_a_strict_tool_and_any_other_may_say_what_it_likes(parser: str) -> None:
    held, form = grammar(parser), CALLS[parser]
    assert fits(held, form.format(name="weather", arguments=GOOD))
    assert not fits(held, form.format(name="weather", arguments=BAD))
    assert fits(held, form.format(name="now", arguments=BAD))
    assert not fits(held, form.format(name="nobody", arguments=GOOD))


@pytest.mark.parametrize("parser", [*CALLS, "qwen3_coder"])
@pytest.mark.parametrize("text", ["", "Hello, <b>tool_call</b> & {x} [1] ünï\n\n", "<tool_cal", "f(x) = [TOOL_CALLS"])
def test_text_without_a_call_is_free(parser: str, text: str) -> None:
    assert fits(grammar(parser), text)


@pytest.mark.parametrize("parser", ["hermes", "mistral"])
def test_calls_stand_anywhere_in_the_text_and_none_is_left_out(parser: str) -> None:
    held = grammar(parser)
    good, bad = (CALLS[parser].format(name="weather", arguments=arguments) for arguments in (GOOD, BAD))
    assert fits(held, f"Let me see. {good}\n{good} And then?")
    assert not fits(held, f"Let me see. {good}\n{bad}")
    marker = TOOL_FORMATS[parser].markers[0]
    assert not fits(held, f"Here it is: {marker} and no call")


def test_an_answer_that_begins_with_a_brace_is_a_call_of_llama() -> None:
    held = grammar("llama3_json")
    good = CALLS["llama3_json"].format(name="weather", arguments=GOOD)
    assert fits(held, f"<|python_tag|>{good}; {good}")
    assert not fits(held, '{"colour": "red"}')
    assert not fits(held, f"\n {CALLS['llama3_json'].format(name='weather', arguments=BAD)}")


def test_newer_forms_of_mistral() -> None:
    held = grammar("mistral")
    assert fits(held, f"Hm.[TOOL_CALLS]weather{GOOD}[TOOL_CALLS]now[ARGS]{BAD}")
    assert not fits(held, f"[TOOL_CALLS]weather[ARGS]{BAD}")


@pytest.mark.parametrize("outer", [("<tool_call>\n", "\n</tool_call>"), ("", "")])
def test_tags_of_qwen3_coder(outer: tuple[str, str]) -> None:
    def call(name: str, *parameters: tuple[str, str]) -> str:
        inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
        return f"{outer[0]}<function={name}>\n{inside}</function>{outer[1]}"

    held = grammar("qwen3_coder")
    assert fits(held, "Hm. " + call("weather", ("city", "New\nYork"), ("days", "3")) + "\n" + call("now"))
    assert not fits(held, call("weather", ("city", "Rome"), ("days", "many")))
    assert not fits(held, call("weather"))
    assert fits(held, call("now", ("anything", "at all")))


def test_one_call_is_one_where_only_one_is_wanted() -> None:
    call = CALLS["hermes"].format(name="weather", arguments=GOOD)
    assert fits(grammar("hermes", max_calls=1), f"{call} Done.")
    assert not fits(grammar("hermes", max_calls=1), call + call)


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("parser", [*TOOL_FORMATS, "list"])
@pytest.mark.parametrize("unsupported", [{"uniqueItems": True}, {"not": {"type": "null"}}])
def test_a_schema_that_cannot_be_followed_is_refused_with_its_tool_and_keyword(
    parser: str, unsupported: dict[str, Any], is_strict: bool
) -> None:
    good = Tool("first", {"properties": {"a": {"type": "integer"}}}, param="tools[0].function.parameters")
    broken = {"type": "object", "properties": {"ids": {"type": "array", **unsupported}}}
    tools = [good, Tool("second", broken, is_strict, param="tools[1].function.parameters")]
    style = PLAIN_LIST if parser == "list" else TOOL_FORMATS[parser]
    held = forced_calls(style.grammar(tools, 2, quote_text), None, "tools")
    preparation = COMPILER.prepare(held)
    preparation.exception(timeout=30)
    error = find_error(preparation, held)
    assert isinstance(error, InvalidRequestError)
    assert error.param == "tools[1].function.parameters"
    assert "'second'" in error.message
    assert next(iter(unsupported)) in error.message
    assert "'first'" not in error.message


def test_markers_that_are_special_tokens() -> None:
    start, end = 258, 259
    held = grammar("hermes", quote=lambda marker: {"<tool_call>": "<[258]>", "</tool_call>": "<[259]>"}[marker])

    def tokens(arguments: str) -> list[int]:
        body = TOKENIZER.encode(f'\n{{"name": "weather", "arguments": {arguments}}}\n')
        return [*TOKENIZER.encode("So: "), start, *body, end, *TOKENIZER.encode("!"), END_ID]

    assert num_fitting(held, tokens(GOOD)) == len(tokens(GOOD))
    assert num_fitting(held, tokens(BAD)) < len(tokens(BAD)) - 3
    assert fits(held, "The marker as text, <tool_call>, is none.")


def test_reasoning_comes_before_and_may_speak_of_calls() -> None:
    held = grammar("hermes", reasoning=True)
    good, bad = (CALLS["hermes"].format(name="weather", arguments=arguments) for arguments in (GOOD, BAD))
    assert fits(held, f"I could <tool_call> it</think>\n\nSo: {good}")
    assert not fits(held, f"I could</think>\n\nSo: {bad}")


# ------------------------------------------------------------------------------------------- with the OpenAI client


def model_that_wants(text: str) -> Any:
    """A model that writes a text for as long as it is allowed to, and then what it is allowed to."""

    async def answer(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        del prompt
        wanted, output = [*TOKENIZER.encode(text), END_ID], list[int]()
        masks, state = GrammarMasks(COMPILER), None if sampling.grammar is None else GrammarState(sampling.grammar)
        while not output or output[-1] != END_ID:
            token = wanted[len(output)] if output == wanted[: len(output)] else None
            if state is not None:
                allowed = allowed_tokens(masks.masks([(state, output[state.num_read :])])[0])
                if token not in allowed:
                    token = readable_fitting_token(output, allowed, 0)
            assert token is not None
            output.append(token)
            ends = token == END_ID
            yield ChoiceDelta(
                0, "" if ends else chr(token), (token,), len(output), 0, finish_reason="stop" if ends else None
            )
            await asyncio.sleep(0)

    return answer


def ask(text: str, parser: str = "hermes", **fields: Any) -> Any:
    """The answer of a model that wants to write this text, whole and as it comes from a stream."""

    async def send() -> tuple[Any, str, list[tuple[str, str]]]:
        sections = WebSections(answers=AnswerSettings(tool_call_parser=parser))
        app = create_app(StubEngine(script=model_that_wants(text)), ServerSettings(), sections=sections)
        transport = httpx.ASGITransport(app)
        http: Any = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        async with (
            http,
            openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as client,
        ):
            wanted: Any = {"model": "stub", "messages": [{"role": "user", "content": "hi"}], **fields}
            whole = (await client.chat.completions.create(**wanted)).choices[0]
            content, calls = "", list[tuple[str, str]]()
            async for chunk in await client.chat.completions.create(**wanted, stream=True):
                delta: Any = chunk.choices[0].delta
                content += delta.content or ""
                for call in delta.tool_calls or ():
                    if call.index == len(calls):
                        calls.append((call.function.name, ""))
                    name, arguments = calls[call.index]
                    calls[call.index] = name, arguments + (call.function.arguments or "")
            return whole, content, calls

    return asyncio.run(send())


def tool(*, strict: bool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": strict}}


@pytest.mark.parametrize("parser", CALLS)
def test_openais_client_gets_arguments_that_follow_the_schema_from_a_model_that_would_not(parser: str) -> None:
    wrong = CALLS[parser].format(name="weather", arguments='{"town": "Rome", "days": "three"}')
    free, _, _ = ask(wrong, parser, tools=[tool(strict=False)])
    assert free.message.tool_calls[0].function.arguments == '{"town": "Rome", "days": "three"}'
    held, _, streamed = ask(wrong, parser, tools=[tool(strict=True)])
    calls = [(call.function.name, call.function.arguments) for call in held.message.tool_calls]
    assert calls == streamed
    assert held.finish_reason == "tool_calls"
    for name, arguments in calls:
        assert name == "weather"
        jsonschema.validate(json.loads(arguments), CITY)


def test_a_model_that_calls_well_is_left_alone() -> None:
    text = f"Let me look. {CALLS['hermes'].format(name='weather', arguments=GOOD)}"
    held, content, streamed = ask(text, tools=[tool(strict=True)])
    assert held.message.content == content == "Let me look."
    assert streamed == [("weather", GOOD)]


def test_a_model_that_does_not_call_is_left_alone() -> None:
    held, content, _ = ask("No tool is needed: 2 < 3.", tools=[tool(strict=True)])
    assert (held.message.content, held.finish_reason) == ("No tool is needed: 2 < 3.", "stop")
    assert content == held.message.content
