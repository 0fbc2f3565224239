"""Formats of calls one by one: what is a call, what is text, and which format a template teaches."""

import json
from typing import Any

import pytest

from chairlift.config.sections import AnswerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.errors import InvalidRequestError
from chairlift.server.openai.answer_plan import plan_answer, template_variables
from chairlift.server.openai.requests import ChatBody
from chairlift.server.tools.pieces import Assembled, Call
from chairlift.server.tools.reader import AnswerReader, ReadingPlan
from chairlift.server.tools.reasoning import find_opening
from chairlift.server.tools.table import (
    TOOL_FORMATS,
    detect_tool_format,
    find_parser_problem,
    find_reasoning_parser,
)

SCHEMAS = {"f": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}, "now": {}}


def read(parser: str, text: str, **plan: Any) -> tuple[Assembled, str | None]:
    scanner = lambda: TOOL_FORMATS[parser].scanner(list(SCHEMAS), SCHEMAS)  # noqa: E731
    reader = AnswerReader(ReadingPlan(scanner=scanner, **plan))
    whole = Assembled()
    whole.add(reader.read(text, is_final=True))
    return whole, reader.finish_reason("stop")


@pytest.mark.parametrize(
    ("parser", "text", "content", "calls"),
    [
        (
            "hermes",
            'Hm.\n<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>',
            "Hm.",
            [("f", '{"a": "}"}')],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "now", "arguments": null}</tool_call>',
            "",
            [("f", "{}"), ("now", "{}")],
        ),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
        ("hermes", "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
        ("llama3_json", '{"name": "f", "parameters": {"a": "x"}}', "", [("f", '{"a": "x"}')]),
        (
            "llama3_json",
            '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "now", "parameters": {}}',
            "",
            [("f", "{}"), ("now", "{}")],
        ),
        ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}]', "", [("f", '{"a": "x"}')]),
        ("mistral", 'Hm.[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]now[ARGS]{}', "Hm.", [("f", '{"a": 1}'), ("now", "{}")]),
        ("mistral", 'Hm.[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}}', "Hm.", [("f", '{"a": 1}')]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n12\n34\n</parameter>\n<parameter=b>\n5\n</parameter>\n</function>\n"
            "</tool_call>",
            "",
            [("f", '{"a": "12\\n34", "b": 5}')],
        ),
    ],
)
def test_calls_are_told_from_text(parser: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found, reason = read(parser, text)
    assert found.content == content
    assert found.calls == [Call(*call) for call in calls]
    assert reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("mistral", 'I would write [TOOL_CALLS] like so: {"a": 1} and done'),
        ("mistral", 'It is [TOOL_CALLS]  no body{"a": 1} here'),
        ("mistral", 'Or [TOOL_CALLS]f[x]{"a": 1}'),
        ("mistral", "[TOOL_CALLS]{} is empty"),
        ("mistral", 'x [TOOL_CALLS]{"answer": 42}'),
        ("qwen3_coder", "Use <function=name> like this and go on"),
        ("qwen3_coder", "Use <function=f> like this and go on"),
        ("qwen3_coder", "Use <tool_call>\n<function=a g>\n</function>\n</tool_call> or so"),
        ("qwen3_coder", "Use <function=now and go > on"),
        ("qwen3_coder", "It begins with <function=f>"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_prose_about_a_form_is_no_call(parser: str, text: str, size: int) -> None:
    assert in_pieces(text, size, parser) == (Assembled(content=text), "stop")


@pytest.mark.parametrize(
    ("parser", "text", "name"),
    [
        ("mistral", "[TOOL_CALLS]any.name{}", "any.name"),
        ("qwen3_coder", "<function=any:name>\n</function>", "any:name"),
        ("mistral", "[TOOL_CALLS]any name{}", None),
        ("qwen3_coder", "<function=any name>\n</function>", None),
        ("qwen3_coder", "<function=>\n</function>", None),
    ],
)
def test_names_that_are_not_known_must_look_like_names(parser: str, text: str, name: str | None) -> None:
    reader = AnswerReader(ReadingPlan(scanner=lambda: TOOL_FORMATS[parser].scanner([], {})))
    whole = Assembled()
    whole.add(reader.read(text, is_final=True))
    assert whole == (Assembled(content=text) if name is None else Assembled(calls=[Call(name, "{}")]))


OF_NOBODY = [
    ("hermes", '<tool_call>{"name": "nobody", "arguments": {"a": "5"}}</tool_call>'),
    ("qwen3", '<tool_call>\n{"arguments": {"a": "5"}, "name": "nobody"}\n</tool_call>'),
    ("llama3_json", '{"name": "nobody", "parameters": {"a": "5"}}'),
    ("llama3_json", '<|python_tag|>{"name": "nobody", "parameters": {"a": "5"}}'),
    ("mistral", '[TOOL_CALLS][{"name": "nobody", "arguments": {"a": "5"}}]'),
    ("mistral", '[TOOL_CALLS] {"name": "nobody", "arguments": {"a": "5"}}'),
    ("mistral", '[TOOL_CALLS]nobody{"a": "5"}'),
    ("mistral", '[TOOL_CALLS]nobody[ARGS]{"a": "5"}'),
    ("qwen3_coder", '<tool_call>\n<function=nobody>\n<parameter=a>\n"5"\n</parameter>\n</function>\n</tool_call>'),
    ("qwen3_coder", '<function=nobody>\n<parameter=a>\n"5"\n</parameter>\n</function>'),
]
"""Every form that a reader knows, with the name of no tool."""


def in_pieces(text: str, size: int, parser: str, **plan: Any) -> tuple[Assembled, str | None]:
    reader = AnswerReader(ReadingPlan(scanner=lambda: TOOL_FORMATS[parser].scanner(list(SCHEMAS), SCHEMAS), **plan))
    whole = Assembled()
    for place in range(0, len(text), size):
        whole.add(reader.read(text[place : place + size]))
    whole.add(reader.read("", is_final=True))
    return whole, reader.finish_reason("stop")


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(("parser", "text"), OF_NOBODY)
def test_a_call_of_what_is_no_tool_is_passed_on(parser: str, text: str, size: int) -> None:
    found, reason = in_pieces(text, size, parser)
    assert (found.content, reason) == ("", "tool_calls")
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("nobody", {"a": "5"})]


def test_every_parser_is_asked_for_a_call_of_nobody() -> None:
    assert {parser for parser, _ in OF_NOBODY} == set(TOOL_FORMATS)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(("parser", "text"), OF_NOBODY)
def test_where_an_answer_has_a_form_of_its_own_it_is_content(parser: str, text: str, size: int) -> None:
    found, reason = in_pieces(text, size, parser, takes_only_known=True)
    assert (found, reason) == (Assembled(content=text), "stop")


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "qwen3_coder"])
def test_a_call_that_was_cut_is_not_reported_as_one_that_ended(parser: str) -> None:
    text = {
        "hermes": '<tool_call>{"name": "f", "arguments": {"a": "x',
        "llama3_json": '{"name": "f", "parameters": {"a": "x',
        "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x',
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\nx",
    }[parser]
    found, reason = read(parser, text)
    assert [call.name for call in found.calls] == ["f"]
    assert reason == "stop"


def test_further_calls_are_left_out_where_one_is_allowed() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 3
    found, reason = read("hermes", text, max_calls=1)
    assert found.calls == [Call("f", "{}")]
    assert reason == "tool_calls"


def test_reasoning_is_told_from_the_answer_and_from_calls() -> None:
    found, _ = read("hermes", '\nI <tool_call>\n</think>\n\n<tool_call>{"name": "f"}</tool_call>', opening="inside")
    assert found.reasoning == "I <tool_call>"
    assert found.calls == [Call("f", "{}")]
    found, _ = read("hermes", "<think>a</think>b", opening="possible", shows_reasoning=False)
    assert (found.reasoning, found.content) == ("", "b")


@pytest.mark.parametrize(
    ("prompt", "parser", "opening"),
    [
        ("<|assistant|><think>\n", "qwen3", "inside"),
        ("<|assistant|><think>\n\n</think>\n\n", "qwen3", "none"),
        ("<|assistant|>", "qwen3", "possible"),
        ("<|assistant|>", "deepseek_r1", "inside"),
        ("<|assistant|></think>", "deepseek_r1", "none"),
    ],
)
def test_the_prompt_says_where_reasoning_begins(prompt: str, parser: str, opening: str) -> None:
    assert find_opening(prompt, parser) == opening


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("... return a json object within <tool_call></tool_call> ...", "hermes"),
        ("<tool_call>\n<function=example>\n<parameter=p>", "qwen3_coder"),
        ("{{ '[TOOL_CALLS]' + ... }}", "mistral"),
        ('{"name": ..., "parameters": ...} <|python_tag|>', "llama3_json"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
    ],
)
def test_a_template_tells_the_format(template: str, parser: str | None) -> None:
    found = detect_tool_format(template)
    assert (found and found.name) == parser


@pytest.mark.parametrize(
    ("parser", "template", "is_told"),
    [
        ("hermes", "{% for message in messages %}{{ message.content }}{% endfor %}", True),
        ("llama3_json", "", True),
        ("hermes", "{% if tools %}<tool_call>{% endif %}", False),
        ("mistral", "{% if tools %}...{% endif %}", False),
        ("auto", "{{ messages }}", False),
        ("none", "{{ messages }}", False),
    ],
)
def test_a_parser_that_a_template_leaves_without_effect_is_told_of(parser: str, template: str, is_told: bool) -> None:
    problem = find_parser_problem(parser, template)
    assert (problem is not None) == is_told
    assert problem is None or f"--tool-call-parser {parser}:" in problem


def test_reasoning_is_looked_for_where_a_template_speaks_of_it() -> None:
    assert find_reasoning_parser("auto", "{{ content.split('</think>') }}") == "qwen3"
    assert find_reasoning_parser("auto", "plain") is None
    assert find_reasoning_parser("none", "</think>") is None
    assert find_reasoning_parser("deepseek_r1", "") == "deepseek_r1"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def plan(
    settings: AnswerSettings | None = None, prompt: str = "", **fields: object
) -> tuple[SamplingParams, ReadingPlan]:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    return plan_answer(body, SamplingParams(), prompt, ByteTokenizer(), settings or AnswerSettings())


def test_a_forced_call_works_with_any_model_and_a_free_one_only_where_the_form_is_known() -> None:
    sampling, reading = plan(tools=[TOOL], tool_choice="required")
    assert sampling.grammar is not None
    assert reading.scanner is not None
    with pytest.raises(InvalidRequestError, match="--tool-call-parser"):
        plan(tools=[TOOL])
    sampling, reading = plan(AnswerSettings(tool_call_parser="hermes"), tools=[TOOL])
    assert sampling.grammar is None
    assert reading.scanner is not None


def test_the_grammar_begins_behind_the_reasoning() -> None:
    settings = AnswerSettings(reasoning_parser="deepseek_r1")
    sampling, _ = plan(settings, response_format={"type": "json_object"})
    assert sampling.grammar is not None
    assert "reasoning" in json.loads(sampling.grammar.source)["grammars"][0]["lark_grammar"]
    sampling, _ = plan(settings, prompt="<think>\n\n</think>", response_format={"type": "json_object"})
    assert sampling.grammar is not None
    assert "reasoning" not in json.loads(sampling.grammar.source)["grammars"][0]["lark_grammar"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL, TOOL], "tool_choice": "required"}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
    ],
)
def test_fields_that_contradict_are_refused_by_name(fields: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(**fields)
    assert caught.value.param == param


def test_templates_are_told_of_tools_and_of_the_effort() -> None:
    body = ChatBody.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "reasoning_effort": "none"}
    )
    assert template_variables(body) == {"tools": [TOOL], "reasoning_effort": "none", "enable_thinking": False}
    hidden = body.model_copy(update={"tool_choice": "none"})
    assert "tools" not in template_variables(hidden)


def test_arguments_of_earlier_calls_reach_the_template_as_values() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"}
    body = ChatBody.model_validate({"messages": [message]})
    told = body.messages[0].for_template()
    assert told["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert told["reasoning_content"] == "hm"


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("parser", "whole"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ("llama3_json", '{"name": "f", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}]'),
        ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
        ("none", '[{"name": "f", "parameters": {}}]'),
    ],
)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_nothing_of_a_forced_call_is_content_wherever_it_is_cut(parser: str, whole: str, choice: Any) -> None:
    settings = AnswerSettings(tool_call_parser=parser)
    _, reading = plan(settings, tools=[TOOL], tool_choice=choice)
    found = Assembled()
    for length in range(len(whole) + 1):
        reader, found = AnswerReader(reading), Assembled()
        found.add(reader.read(whole[:length]))
        found.add(reader.read("", is_final=True))
        assert found.content == ""
    assert found.calls == [Call("f", "{}")]


def test_a_call_that_nobody_forced_and_that_was_cut_before_its_body_is_content() -> None:
    _, reading = plan(AnswerSettings(tool_call_parser="hermes"), tools=[TOOL])
    whole = Assembled()
    whole.add(AnswerReader(reading).read("Hm. <tool_call>", is_final=True))
    assert whole.content == "Hm. <tool_call>"
