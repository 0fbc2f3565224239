"""What schemas of tools may cost whoever serves others meanwhile: no body that is short enough to be looked at on the
event loop makes it wait, whatever its references lead to.
"""

import bisect
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import pytest

from chairlift.errors import InvalidRequestError
from chairlift.server.body import LONG_BODY_BYTES
from chairlift.server.tools.grammars import Tool, forced_calls, free_answer
from chairlift.server.tools.object_variants import object_variants
from chairlift.server.tools.schema_parts import Effort, References, SchemaError, SchemaNumbers
from chairlift.server.tools.table import TOOL_FORMATS
from chairlift.server.tools.tagged_parameters import ReadTools
from chairlift.structured.sources import quote_text

Schema = dict[str, Any]

QWEN = TOOL_FORMATS["qwen3_coder"]
MAX_CALLS = 500_000
"""Of functions, those of the interpreter too: what takes tens of milliseconds."""


def ref(name: object) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def properties(schemas: Sequence[Any]) -> Schema:
    return {f"p{index}": schema for index, schema in enumerate(schemas)}


def chain(length: int, end: Schema) -> Schema:
    return {str(index): ref(index + 1) for index in range(length)} | {str(length): end}


def head_of_a_chain(n: int) -> list[Schema]:
    return [{"properties": properties([ref(0)] * n), "$defs": chain(n, {"type": "string"})}]


def everywhere_in_a_chain(n: int) -> list[Schema]:
    return [{"properties": properties([ref(at) for at in range(n)]), "$defs": chain(n, {"type": "integer"})}]


def chain_of_wrappers(n: int) -> list[Schema]:
    links = {str(index): {"allOf": [ref(index + 1)], "title": "x"} for index in range(n)}
    return [{"properties": properties([ref(0)] * n), "$defs": links | {str(n): {"type": "string"}}}]


def circle(n: int) -> list[Schema]:
    return [{"properties": properties([ref(at) for at in range(n)]), "$defs": chain(n, ref(0))}]


def all_members_required(n: int) -> list[Schema]:
    named = properties([{}] * n)
    return [{"properties": named, "required": list(reversed(named))}]


def required_put_together(n: int) -> list[Schema]:
    return [{"required": [f"r{index}" for index in range(n)], "allOf": [{}] * n}]


def one_choice_for_all(n: int) -> list[Schema]:
    texts = [f"c{index}" for index in range(n)]
    return [{"properties": properties([ref("e")] * n), "$defs": {"e": {"type": "string", "enum": texts}}}]


def places_of_a_list(n: int) -> list[Schema]:
    schemas = [{"$ref": f"#/$defs/e/enum/{index}"} for index in range(n)]
    return [{"properties": properties(schemas), "$defs": {"e": {"enum": list(range(n))}}}]


def long_ways(n: int) -> list[Schema]:
    node: Schema = {"type": "object"}
    for _ in range(n // 8):
        node = {"x": node}
    way = "#/$defs" + "/x" * (n // 8)
    return [{"allOf": [{"$ref": way}] * n, "$defs": node}]


def nothing_is_there(n: int) -> list[Schema]:
    lost = {"d": {"anyOf": [ref(f"no{index}") for index in range(n)]}}
    return [{"properties": properties([ref("d")] * n), "$defs": lost}]


def equal_but_for_the_end(n: int) -> list[Schema]:
    num_ways = 30
    large = {str(at): {"enum": [*([[]] * (n // 4)), at]} for at in range(num_ways)}
    ways = [{"properties": properties([ref(at)] * (n // 10))} for at in range(num_ways)]
    return [{"anyOf": ways, "$defs": large}]


def two_in_turn(n: int) -> list[Schema]:
    parts = {"a": {"properties": {"p": {"enum": [[]] * n * 4}}}, "b": {"properties": {"p": {"minLength": 1}}}}
    return [{"allOf": [ref(name) for name in "ab" * n], "$defs": parts}]


def one_within_another(n: int) -> list[Schema]:
    node: Schema = {"enum": [[]] * n * 4}
    for _ in range(60):
        node = {"properties": {"x": node}}
    ways = ["#/$defs/n" + "/properties/x" * depth for depth in range(60)]
    return [{"allOf": [{"$ref": way} for way in ways], "$defs": {"n": node}}]


def ways_beside_many_members(n: int) -> list[Schema]:
    ways = [{"required": [f"r{index}"]} for index in range(30)]
    return [{"properties": properties([True] * n), "anyOf": ways, "allOf": [{"anyOf": ways}] * 30}]


def whole_schema_in_each(n: int) -> list[Schema]:
    return [{"properties": properties([{"items": {"$ref": "#"}}] * n)}]


def many_tools(n: int) -> list[Schema]:
    doubling = {str(at): {"allOf": [ref(at + 1)] * 2} for at in range(7)} | {"7": {"properties": {"p": {}}}}
    return [{**ref(0), "$defs": doubling}] * (n // 10)


KINDS = [
    head_of_a_chain,
    everywhere_in_a_chain,
    chain_of_wrappers,
    circle,
    all_members_required,
    required_put_together,
    one_choice_for_all,
    places_of_a_list,
    long_ways,
    nothing_is_there,
    equal_but_for_the_end,
    two_in_turn,
    one_within_another,
    ways_beside_many_members,
    whole_schema_in_each,
    many_tools,
]


def largest(kind: Callable[[int], list[Schema]]) -> list[Schema]:
    """The largest of its kind that a short body has room for."""

    def num_bytes(n: int) -> int:
        return len(json.dumps(kind(n), separators=(",", ":")))

    n = bisect.bisect_left(range(6_000), LONG_BODY_BYTES, key=num_bytes) - 1
    return json.loads(json.dumps(kind(n)))


def work_of(something: Callable[[], object]) -> tuple[int, float]:
    """The calls of functions that something makes, and the processor time that it takes when nobody counts."""
    start_s = time.process_time()
    something()
    taken_s = time.process_time() - start_s
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        something()
    finally:
        sys.setprofile(before)
    return num_calls, taken_s


def plan(schemas: Sequence[Mapping[str, Any]], *, is_free: bool) -> None:
    tools = [Tool(f"w{index}", schema, is_strict=True) for index, schema in enumerate(schemas)]
    try:
        if is_free and QWEN.free is not None:
            free_answer(QWEN.free(tools, None, quote_text), None, "tools")
        else:
            forced_calls(QWEN.grammar(tools, 2, quote_text), None, "tools")
    except InvalidRequestError as error:
        assert error.param == "tools"  # noqa: PT017


def read(schemas: Sequence[Mapping[str, Any]]) -> None:
    tools = ReadTools({f"w{index}": schema for index, schema in enumerate(schemas)})
    for _ in range(4):
        scanner = QWEN.scanner(list(tools), tools)
        for name in tools:
            assert scanner.read(f"<tool_call>\n<function={name}>\n<parameter=p0>\n1\n</parameter>\n</function>")


@pytest.mark.parametrize("kind", KINDS)
def test_no_short_body_has_schemas_that_keep_others_waiting(kind: Callable[[int], list[Schema]]) -> None:
    schemas = largest(kind)
    for something in (
        lambda: plan(schemas, is_free=False),
        lambda: plan(schemas, is_free=True),
        lambda: read(schemas),
    ):
        num_calls, taken_s = work_of(something)
        assert num_calls < MAX_CALLS
        # Comparing and copying are no calls. What is not bounded takes seconds.
        assert taken_s < 0.5


def test_each_part_of_a_chain_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    find = References.target
    monkeypatch.setattr(References, "target", lambda self, name: (found.append(name), find(self, name))[1])
    (schema,) = json.loads(json.dumps(head_of_a_chain(300)))
    references = References(schema)
    assert [references.follow(part) for part in schema["properties"].values()] == [{"type": "string"}] * 300
    assert len(found) == 300 + 300
    assert len(set(found)) == 301


@pytest.mark.parametrize("start", range(3))
def test_what_leads_back_to_itself_is_followed_to_an_end(start: int) -> None:
    schema = {"$defs": {"0": ref(1), "1": {"allOf": [ref(2)]}, "2": ref(1)}}
    references = References(schema)
    assert references.follow(schema["$defs"][str(start)]) in schema["$defs"].values()


@pytest.mark.parametrize(("name", "is_there"), [("0", True), ("1", True), ("2", False), ("01", False), ("-1", False)])
def test_a_reference_may_lead_into_a_list(name: str, is_there: bool) -> None:
    references = References({"anyOf": [True, False]})
    if is_there:
        assert references.target(f"#/anyOf/{name}") is (name == "0")
    else:
        with pytest.raises(SchemaError, match="which is not there"):
            references.target(f"#/anyOf/{name}")


def test_schemas_that_say_the_same_have_one_number() -> None:
    numbers = SchemaNumbers(Effort())
    one, same, other = {"type": "string", "title": "t"}, {"title": "t", "type": "string"}, {"const": 1}
    true = {"const": True}
    first, second = numbers.number(one), numbers.number(other)
    assert numbers.number(same) == first
    assert len({first, second, numbers.number(true)}) == 3
    both = numbers.both(first, second)
    assert numbers.schema(both) == {"allOf": [one, other]}
    assert numbers.both(both, first) == numbers.both(both, second) == both
    assert numbers.both(both, numbers.number(True)) == both
    assert numbers.both(both, numbers.number(False)) == numbers.number(False)


def test_what_is_required_counts_each_time_that_it_is_put_together() -> None:
    schema = {"required": [f"r{index}" for index in range(1_000)], "allOf": [{}] * 100}
    with pytest.raises(SchemaError, match="too many"):
        object_variants(schema, Effort())
    assert len(object_variants({**schema, "allOf": [{}] * 10}, Effort())) == 1


def test_the_tools_of_a_request_share_what_they_may_take() -> None:
    effort = Effort()
    (schema, *_) = many_tools(10)
    object_variants(schema, effort)
    object_variants(schema, Effort())
    for _ in range(30):
        try:
            object_variants(schema, effort)
        except SchemaError:
            return
    raise AssertionError("they may take any time")
