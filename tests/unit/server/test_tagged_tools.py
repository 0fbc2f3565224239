"""Tools whose calls are written as tags: which schemas can be followed, and that what is written is what is read."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx
import jsonschema
import pytest

from chairlift.config.sections import AnswerSettings, ServerSettings
from chairlift.errors import InvalidRequestError
from chairlift.server.app import create_app
from chairlift.server.context import WebSections
from chairlift.server.tools.grammars import Tool, forced_calls, free_answer
from chairlift.server.tools.pieces import Assembled, Call
from chairlift.server.tools.reader import AnswerReader, ReadingPlan
from chairlift.server.tools.table import TOOL_FORMATS
from chairlift.structured.sources import quote_text
from tests.unit.server.stub_engine import StubEngine
from tests.unit.server.test_strict_tools import fits, model_that_wants

QWEN = TOOL_FORMATS["qwen3_coder"]
CALL = "<tool_call>\n<function=w>\n{}</function>\n</tool_call>"


def written(**values: str) -> str:
    return CALL.format("".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()))


def is_held(schema: Mapping[str, Any], text: str) -> bool:
    """Whether both grammars, that of a free answer and that of a forced one, let a model write this."""
    tools = [Tool("w", schema, is_strict=True)]
    assert QWEN.free is not None
    found = {
        fits(free_answer(QWEN.free(tools, None, quote_text), None, "tools"), text),
        fits(forced_calls(QWEN.grammar(tools, 2, quote_text), None, "tools"), text),
    }
    assert len(found) == 1
    return found.pop()


def read(schema: Mapping[str, Any], text: str) -> Assembled:
    """What is read of a text; the same wherever it is cut."""
    wholes: list[Assembled] = []
    for size in (len(text), 1, 2, 7):
        reader = AnswerReader(ReadingPlan(scanner=lambda: QWEN.scanner(["w"], {"w": schema})))
        whole = Assembled()
        for place in range(0, len(text), size):
            whole.add(reader.read(text[place : place + size]))
        whole.add(reader.read("", is_final=True))
        wholes.append(whole)
    assert all(whole == wholes[0] for whole in wholes)
    return wholes[0]


def arguments(schema: Mapping[str, Any], text: str) -> Any:
    found = read(schema, text)
    assert found.content == ""
    (call,) = found.calls
    return json.loads(call.arguments)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# ---------------------------------------------------------------------------------- schemas that cannot be followed


def answer_to(*parameters: Any, strict: bool = True, **fields: Any) -> httpx.Response:
    """The answer to a request with a tool for each of these schemas."""

    async def send() -> httpx.Response:
        sections = WebSections(answers=AnswerSettings(tool_call_parser="qwen3_coder"))
        app = create_app(StubEngine(script=model_that_wants("Hm.")), ServerSettings(), sections=sections)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        tools = [
            {"type": "function", "function": {"name": f"w{place}", "parameters": schema, "strict": strict}}
            for place, schema in enumerate(parameters)
        ]
        wanted = {"model": "stub", "messages": [{"role": "user", "content": "x"}], "tools": tools, **fields}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/chat/completions", json=wanted)

    return asyncio.run(send())


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "w1"}}])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": [1]},
        {"type": "object", "properties": "x"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": 3},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": [["a"]]},
        {"type": "object", "properties": {"a": 3}},
        {"type": "object", "properties": {"a": [{"type": "string"}]}},
        {"type": "object", "properties": {"a": None}},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {"x>y": {"type": "string"}}},
        {"type": "object", "properties": {" x": {"type": "string"}}},
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_name(parameters: Any, choice: Any, is_stream: bool) -> None:
    response = answer_to(object_of(), parameters, tool_choice=choice, stream=is_stream)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1].function.parameters"


def test_a_schema_to_which_nothing_is_held_may_be_anything() -> None:
    assert answer_to({"properties": [1]}, strict=False).status_code == 200


def test_true_takes_any_json_and_false_none() -> None:
    schema = {"type": "object", "properties": {"a": True, "b": False}, "required": ["a"]}
    assert is_held(schema, written(a='{"x": [1]}'))
    assert not is_held(schema, written(a="1", b="1"))


@pytest.mark.parametrize("target", ["#", "#/$defs/node"])
def test_a_reference_within_a_parameter_is_to_the_schema_of_the_tool(target: str) -> None:
    children = {"anyOf": [{"type": "array", "items": {"$ref": target}}, {"type": "null"}]}
    node: dict[str, Any] = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "child": children},
        "required": ["v"],
        "additionalProperties": False,
    }
    schema = node if target == "#" else {**node, "$defs": {"node": node}}
    good = written(v="1", child='[{"v": 2, "child": [{"v": 3}]}]')
    assert is_held(schema, good)
    jsonschema.validate(arguments(schema, good), schema)
    assert not is_held(schema, written(v="1", child="[[null]]"))


def test_a_reference_may_be_to_another_parameter() -> None:
    schema = object_of(a={"type": "integer"}, b={"$ref": "#/properties/a"})
    assert is_held(schema, written(a="1", b="2"))
    assert not is_held(schema, written(a="1", b='"2"'))


# ----------------------------------------------------------------------- schemas that are put together at their top

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
        {"$ref": "#/definitions/a~1b", "definitions": {"a/b": CITY}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": CITY}},
        {"allOf": [CITY]},
        {"allOf": [{"$ref": "#/$defs/City"}], "$defs": {"City": CITY}, "description": "Looks outside."},
        {"properties": {"city": {"type": "string"}}, "allOf": [{"properties": {"days": {"type": "integer"}}}, CITY]},
        {"anyOf": [CITY, {"type": "null"}]},
        {"type": "object", "oneOf": [CITY]},
    ],
)
def test_parameters_are_found_wherever_the_schema_has_them(schema: dict[str, Any]) -> None:
    text = written(city="12", days="3")
    assert is_held(schema, text)
    assert is_held(schema, written(city="Rome"))
    assert not is_held(schema, written(days="3"))
    assert not is_held(schema, written(city="12", days="three"))
    assert arguments(schema, text) == {"city": "12", "days": 3}


def test_ways_to_follow_a_schema_do_not_mix() -> None:
    by_name = {"properties": {"kind": {"const": "name"}, "name": {"type": "string"}}, "required": ["kind", "name"]}
    by_place = {"properties": {"kind": {"const": "at"}, "x": {"type": "integer"}}, "required": ["kind", "x"]}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "anyOf": [by_name, by_place]}
    good = [written(n="1", kind="name", name="7"), written(kind="at", x="7")]
    assert [arguments(schema, text) for text in good] == [{"n": 1, "kind": "name", "name": "7"}, {"kind": "at", "x": 7}]
    for text in good:
        assert is_held(schema, text)
        jsonschema.validate(arguments(schema, text), schema)
    for text in (
        written(kind="at", name="7"),
        written(kind="name", x="7"),
        written(n="1"),
        written(kind='"at"', x="7"),
    ):
        assert not is_held(schema, text)


def test_one_of_several_must_be_there() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    for values, is_enough in (({"a": "1"}, True), ({"b": "1"}, True), ({"a": "1", "b": "2"}, True), ({}, False)):
        assert is_held(schema, written(**values)) == is_enough


def test_what_may_be_text_or_not_is_written_as_json() -> None:
    schema = {"anyOf": [object_of(v={"type": "string"}), object_of(v={"type": "integer"})]}
    assert is_held(schema, written(v='"7"'))
    assert is_held(schema, written(v="7"))
    assert not is_held(schema, written(v="seven"))
    for value, meant in (('"7"', "7"), ("7", 7), ("seven", "seven")):
        assert arguments(schema, written(v=value)) == {"v": meant}


def test_a_member_that_both_schemas_name_follows_both() -> None:
    schema = {"allOf": [object_of(v={"type": "integer", "minimum": 3}), {"properties": {"v": {"maximum": 5}}}]}
    assert [is_held(schema, written(v=value)) for value in ("2", "4", "6")] == [False, True, False]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_reference_to_text_is_text(wrapped: bool) -> None:
    reference: dict[str, Any] = {"$ref": "#/$defs/Unit", "description": "degrees"}
    if wrapped:
        reference = {"allOf": [{"$ref": "#/$defs/Unit"}], "default": "c"}
    schema = {**object_of(unit=reference), "$defs": {"Unit": {"type": "string", "enum": ["c", "12"]}}}
    assert [is_held(schema, written(unit=value)) for value in ("c", "12", '"c"', "k")] == [True, True, False, False]
    assert arguments(schema, written(unit="12")) == {"unit": "12"}


def test_large_definitions_are_copied_to_where_they_are_needed_and_no_further() -> None:
    start = time.process_time()
    large = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2_000)}}
    members = {f"m{n}": {"type": "integer"} for n in range(2_000)}
    unused = {"properties": {**members, "city": {"$ref": "#/$defs/City"}}, "$defs": {"Large": large, "City": CITY}}
    held = QWEN.grammar([Tool("w", unused)], 2, quote_text)
    (city,) = [part.body["json_schema"] for part in held.parts.values() if "$defs" in part.body["json_schema"]]
    assert city["$defs"] == {"City": CITY}
    many = {"properties": {key: {"$ref": "#/$defs/Large"} for key in members}, "$defs": {"Large": large}}
    with pytest.raises(InvalidRequestError, match="refer to large definitions"):
        QWEN.grammar([Tool("w", many)], 2, quote_text)
    assert time.process_time() - start < 2


DOUBLING = {
    "$ref": "#/$defs/0",
    "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)} | {"40": CITY},
}
MANY = {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(12)]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "http://example.com/x"}, "'http://example.com/x'"),
        ({"$ref": "#/$defs/no"}, "'#/$defs/no', which is not there"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads back to itself"),
        ({"anyOf": [{"$ref": "#"}, CITY]}, "anyOf[0].$ref leads back to itself"),
        ({"anyOf": [CITY, {"properties": [1]}]}, "anyOf[1].properties must be an object"),
        ({"anyOf": {"a": CITY}}, ".anyOf must be a list"),
        ({"anyOf": [3]}, "anyOf[0] must be a schema"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "can be followed by no object"),
        ({"allOf": [False]}, "can be followed by no object"),
        (DOUBLING, "too many"),
        (MANY, "too many"),
    ],
)
def test_what_cannot_be_put_together_is_refused_by_name_and_read_all_the_same(schema: Any, words: str) -> None:
    start = time.process_time()
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as raised:
        is_held(schema, written())
    assert arguments(schema, written(a="1")) == {"a": 1}
    assert time.process_time() - start < 1
    assert raised.value.message.startswith("tools")
    assert raised.value.param == "tools"


# ------------------------------------------------------------------------------------- what is written is what is read


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "enum": ["c", "f"]}, ["c", "f"], ['"c"', "k", "", "cf"]),
        ({"enum": ["", "a\nb", "12"]}, ["", "a\nb", "12"], ["a", '""']),
        ({"type": "string", "const": "now"}, ["now"], ['"now"', "then"]),
        ({"type": "string", "enum": ["</parameter>", "x"]}, ['"</parameter>"', '"x"'], ["x", "</parameter>"]),
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ["a", '"1"']),
        ({"type": "string", "pattern": "^[0-9]{2}$"}, ['"12"'], ["12", '"1"', '"ab"']),
        ({"type": "string", "format": "date"}, ['"2026-01-31"'], ["2026-01-31", '"soon"']),
        ({"type": "string", "maxLength": 3}, ['"Rom"', '"\\n"'], ["Rom", '"Rome"']),
        ({"type": "string", "minLength": 3}, ['"Rome"'], ["Rome", '"Ro"']),
        ({"type": "string", "anyOf": [{"const": "a"}, {"const": "b"}]}, ['"a"'], ["a", '"c"']),
        ({"type": "string"}, ["", '"c"', "12", "null", " a\n\nb\n", "</param>"], []),
        ({"type": ["string", "null"]}, ['"12"', "null"], ["12"]),
    ],
)
def test_a_value_that_the_schema_lets_a_model_write_is_read_as_one_that_follows_it(
    schema: Any, good: list[str], bad: list[str]
) -> None:
    whole = object_of(a=schema, z={"type": "integer"})
    for value in good:
        text = written(a=value, z="3")
        assert is_held(whole, text), value
        jsonschema.validate(arguments(whole, text), whole)
    for value in bad:
        assert not is_held(whole, written(a=value, z="3")), value


def test_texts_are_read_as_they_stand_and_json_for_what_it_says() -> None:
    schema = object_of(a={"type": "string"}, b={"type": "string", "enum": ["c"]}, d={"type": "string", "maxLength": 9})
    assert arguments(schema, written(a='"c"', b="c", d='"c\\n"')) == {"a": '"c"', "b": "c", "d": "c\n"}


@pytest.mark.parametrize("value", ["Rome", "12", "null", "true", '{"a": 1}', '"Rome', "NaN"])
def test_a_model_that_is_not_held_may_write_text_without_quotes(value: str) -> None:
    assert arguments(object_of(a={"type": "string", "pattern": "^.*$"}), written(a=value)) == {"a": value}


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_arguments_are_json_whatever_stands_there(value: str) -> None:
    assert arguments(object_of(a={}), written(a=value)) == {"a": value}


END = "</parameter>"


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        (f"a{END}b", True),
        (f"a\n{END}b", True),
        (f"a\n {END}\n b", True),
        (f"{END}b", True),
        (f"\n\n{END}{END}x{END}", True),
        (f"a{END}\n", True),
        (f"a{END}\n{END}", False),
        (f"a{END}</function>b", False),
        (f"a{END} \n<parameter=z>\n3", False),
        (f"a\n{END}\nb", False),
        (f"{END}\nb", False),
    ],
)
def test_text_that_speaks_of_end_tags_is_read_whole_or_cannot_be_written(value: str, is_allowed: bool) -> None:
    schema = object_of(a={"type": "string"}, z={"type": "integer"})
    text = written(a=value, z="3")
    assert is_held(schema, text) is is_allowed
    if is_allowed:
        assert arguments(schema, text) == {"a": value, "z": 3}


@pytest.mark.parametrize("value", [f"a{END}b", f"{END}</function>", f'{END} <parameter=z>"', f"a\n{END}\n</function>"])
@pytest.mark.parametrize("kind", [{"minLength": 1}, {"type": ["string", "null"]}])
def test_json_that_speaks_of_end_tags_is_read_whole(kind: dict[str, Any], value: str) -> None:
    schema = object_of(a={"type": "string", **kind}, z={"type": "array"})
    text = written(a=json.dumps(value), z=json.dumps([{value: value}]))
    assert is_held(schema, text)
    assert arguments(schema, text) == {"a": value, "z": [{value: value}]}


@pytest.mark.parametrize("form", ["<parameter={}>{}</parameter>", "<parameter={}>\n{}</parameter>\n"])
@pytest.mark.parametrize("after", ["</function>\n</tool_call>", "\n</tool_call>", "", "\n</func"])
def test_line_breaks_that_a_model_leaves_out_change_nothing(form: str, after: str) -> None:
    schema = object_of(a={"type": "string"}, b={"type": "string", "enum": ["c"]}, z={"type": "integer"})
    text = "".join(form.format(*member) for member in [("a", f"x{END}y"), ("b", "c"), ("z", "3")])
    found = read(schema, f"<tool_call>\n<function=w>\n{text}{after}")
    expected = '{"a": "x</parameter>y", "b": "c", "z": 3'
    assert found.content == ""
    assert found.calls[0].arguments.removesuffix("}") == expected


def test_a_value_without_lines_of_its_own_ends_where_nothing_else_is_known() -> None:
    found = read(object_of(a={"type": "string"}), "<function=w><parameter=a>x</parameter> and so on")
    assert json.loads(found.calls[0].arguments) == {"a": "x"}
    assert found.content == "and so on"


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("length", [1, 5, 11])
def test_an_end_tag_that_was_cut_is_no_content(parser: str, length: int) -> None:
    text = {"hermes": '<tool_call>\n{"name": "w", "arguments": {}}\n', "qwen3_coder": CALL.format("")[:-12]}[parser]
    reader = AnswerReader(ReadingPlan(scanner=lambda: TOOL_FORMATS[parser].scanner(["w"], {"w": {}})))
    whole = Assembled()
    whole.add(reader.read(text + "</tool_call>"[:length]))
    whole.add(reader.read("", is_final=True))
    assert whole.content == ""
    assert whole.calls == [Call("w", "{}")]


def test_reading_a_value_takes_time_in_proportion_to_its_length() -> None:
    """Tags within JSON look like its end again and again; each is looked at once, however many deltas come."""
    value = json.dumps(f"{END}</function>" * 2_000)
    schema = object_of(a={"type": "string", "minLength": 1})
    assert arguments(schema, written(a=value)) == {"a": json.loads(value)}
    scanner = QWEN.scanner(["w"], {"w": schema})
    text, begin = written(a=value), time.process_time()
    for character in text:
        scanner.read(character)
    # A search from the beginning with each character takes minutes.
    assert time.process_time() - begin < 5.0
