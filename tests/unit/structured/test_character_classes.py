r"""``\d``, ``\w`` and ``\s`` mean what they mean in ECMA-262, wherever a request has an expression."""

import json
import re
from typing import Any

import pytest

from chairlift.structured.character_classes import with_ecma_classes, with_ecma_patterns
from chairlift.structured.compiler import GrammarCompiler
from chairlift.structured.sources import Part, json_part, regex_part
from tests.unit.structured.test_grammars import accepts, make_compiler

ARABIC_ONE, E_ACUTE, NO_BREAK, NEXT_LINE, BYTE_ORDER_MARK = "\u0661", "\u00e9", "\u00a0", "\u0085", "\ufeff"
"""A digit and a letter of Unicode; the spaces of ECMA-262 are those of Unicode with the last and without the other."""


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d", "7", ARABIC_ONE),
        (r"\D", f"a{ARABIC_ONE}", "7"),
        (r"\w", "aZ0_", f"{E_ACUTE}{ARABIC_ONE}-"),
        (r"\W", f"-{E_ACUTE}", "aZ0_"),
        (r"\s", f" \t\n\r{NO_BREAK}{BYTE_ORDER_MARK}\u2028", f"a{NEXT_LINE}"),
        (r"\S", f"a{NEXT_LINE}", f" \n{NO_BREAK}{BYTE_ORDER_MARK}"),
        (r"[\d.]", "7.", f"{ARABIC_ONE}a"),
        (r"[^\d.]", f"a{ARABIC_ONE}", "7."),
        (r"[\D5]", f"a5{ARABIC_ONE}", "7"),
        (r"[^\W\d]", "a_", f"7-{E_ACUTE}"),
        (r"[+-\d]", "+-7", ",/a"),
        (r"[\w-.]", "a-.", "+/"),
        (r"[\--\d]", "-7", ".Z"),
        (r"[\w--\d]", "a_", "7-"),
        (r"[]\d]", "]7", "[a"),
    ],
)
def test_a_class_has_the_characters_of_ecma(compiler: GrammarCompiler, pattern: str, good: str, bad: str) -> None:
    for part, quote in ((regex_part(pattern), str), (json_part({"type": "string", "pattern": f"^{pattern}$"}), quoted)):
        assert [one for one in good if not accepts(compiler, part, quote(one))] == []
        assert [one for one in bad if accepts(compiler, part, quote(one))] == []


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("text", ["1", "12345", "a b-c", "ABC_9", "+49 30 12", "7\n", " ", "", "x@y.zz", "2026-11-30"])
@pytest.mark.parametrize(
    "pattern", [r"\d+", r"\w+", r"[\w.+-]+@[\w-]+\.[\w.-]+", r"\+?[\d\s]+", r"\d{4}-\d\d-\d\d", r"\S*", r"\s*\W?\D*"]
)
def test_what_is_ascii_matches_as_for_python(compiler: GrammarCompiler, pattern: str, text: str) -> None:
    assert accepts(compiler, regex_part(pattern), text) == bool(re.fullmatch(pattern, text, re.ASCII))


def test_backslashes_before_a_letter_are_no_class() -> None:
    assert with_ecma_classes(r"\\d \\\d [\]\d]") == r"\\d \\[0-9] [\][0-9]]"
    assert with_ecma_classes("\\") == "\\"


def test_all_expressions_of_a_schema_are_written_and_nothing_else() -> None:
    schema: dict[str, Any] = {
        "properties": {"pattern": {"pattern": r"\d"}, "const": {"pattern": r"\d", "const": r"\d"}, "a": True},
        "patternProperties": {r"\d": {"pattern": r"\d"}, "[0-9]": {"type": "string"}},
        "anyOf": [{"items": {"pattern": r"\d"}}, {"enum": [{"pattern": r"\d"}]}],
        "$defs": {"default": {"not": {"pattern": r"\d"}}},
        "components": {"schemas": {"x": {"pattern": r"\d"}}},
        "default": {"pattern": r"\d"},
        "pattern": 7,
    }
    before = json.dumps(schema)
    assert with_ecma_patterns(schema) == {
        "properties": {"pattern": {"pattern": "[0-9]"}, "const": {"pattern": "[0-9]", "const": r"\d"}, "a": True},
        "patternProperties": {"[0-9]": {"allOf": [{"pattern": "[0-9]"}, {"type": "string"}]}},
        "anyOf": [{"items": {"pattern": "[0-9]"}}, {"enum": [{"pattern": r"\d"}]}],
        "$defs": {"default": {"not": {"pattern": "[0-9]"}}},
        "components": {"schemas": {"x": {"pattern": "[0-9]"}}},
        "default": {"pattern": r"\d"},
        "pattern": 7,
    }
    assert json.dumps(schema) == before


def test_a_schema_may_be_nested_as_deeply_as_a_request_can_hold() -> None:
    schema: dict[str, Any] = {"pattern": r"\d"}
    for _ in range(20_000):
        schema = {"not": schema}
    found: Any = with_ecma_patterns(schema)
    while "not" in found:
        found = found["not"]
    assert found == {"pattern": "[0-9]"}


def test_names_that_match_an_expression_of_the_schema_are_ascii_too(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "patternProperties": {r"^\d$": {"type": "null"}}, "additionalProperties": False}
    assert accepts(compiler, json_part(schema), '{"7": null}')
    assert not accepts(compiler, json_part(schema), f'{{"{ARABIC_ONE}": null}}')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number"}, ["1.5e3"], [ARABIC_ONE, f"1{ARABIC_ONE}"]),
        ({"type": "integer", "minimum": 3}, ["12"], [f"1{ARABIC_ONE}"]),
        ({"type": "string", "format": "date"}, ['"2026-11-30"'], [f'"2026-11-3{ARABIC_ONE}"']),
        ({"type": "string", "format": "uuid"}, [], [f'"{ARABIC_ONE}']),
    ],
)
def test_numbers_and_formats_are_ascii(
    compiler: GrammarCompiler, schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    part: Part = json_part(schema)
    assert [text for text in good if not accepts(compiler, part, text)] == []
    assert [text for text in bad if accepts(compiler, part, text)] == []
