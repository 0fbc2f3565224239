"""Grammars: what their texts accept, what is refused and how, and masks that follow an output however it came about."""

import json
import time
from collections.abc import Sequence

import pytest

from chairlift.core.grammar import Grammar
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.errors import ConfigurationError, InvalidRequestError
from chairlift.structured.compiler import MAX_COMPILED, GrammarCompiler, find_error
from chairlift.structured.masks import GrammarMasks, GrammarState, allowed_tokens, unpack
from chairlift.structured.sources import (
    Part,
    choice_part,
    compose,
    json_part,
    lark_part,
    regex_part,
    whole,
)
from chairlift.structured.vocabulary import build_vocabulary

TOKENIZER = ByteTokenizer()


def make_compiler(max_bytes: int = 100_000) -> GrammarCompiler:
    return GrammarCompiler(
        lambda end_tokens: build_vocabulary(TOKENIZER, TOKENIZER.vocab_size, end_tokens),
        max_bytes=max_bytes,
        timeout_s=10.0,
        end_tokens={END_ID},
    )


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def refusal(compiler: GrammarCompiler, grammar: Grammar) -> str:
    preparation = compiler.prepare(grammar)
    preparation.exception(timeout=30)
    error = find_error(preparation, grammar)
    assert isinstance(error, InvalidRequestError)
    assert error.param == grammar.param
    return error.message


def accepts(compiler: GrammarCompiler, part: Part, text: str) -> bool:
    """Whether a text is allowed token by token, and may end there."""
    masks = GrammarMasks(compiler)
    state = GrammarState(whole(part, "field"))
    new: list[int] = []
    for token in [*TOKENIZER.encode(text), END_ID]:
        if token not in allowed_tokens(masks.masks([(state, new)])[0]):
            return False
        new = [token]
    return True


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "minItems": 2, "maxItems": 2}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        (json_part(PERSON), ['{"name": "Ada", "tags": [1, 2]}', '{"name":"","tags":["a",{}]}'], ["{}", '{"name":"A"}']),
        (json_part(PERSON), ['{\n  "name": "x",\n  "tags": [\n    1,\n    2\n  ]\n}'], ['{"name": "123456789"']),
        (json_part(PERSON), [], ['{"name": "", "tags": [1]}', '{"name": "", "tags": [1, 2, 3]}', " " * 40 + "{"]),
        (json_part(True), ["[1]", '"x"', "null"], ["x"]),
        (json_part({"type": "string", "maxLength": 4, "pattern": "^[a-z]+$"}), ['"abcd"'], ['"abcde"', '"A"', '""']),
        (regex_part("a/b\\/c[\n]d"), ["a/b/c\nd"], ["a/b/c", "x"]),
        (choice_part(["yes", 'yes, "sir"\n', "é"]), ["yes", 'yes, "sir"\n', "é"], ["no", "yes,", ""]),
        (lark_part('start: "a" b\nb: /[0-9]+/'), ["a12"], ["a"]),
        (lark_part('root ::= "a" (tail)*\ntail ::= [0-9] | "-"'), ["a", "a1-2"], ["b", "ax"]),
    ],
)
def test_a_grammar_allows_what_fits_it_and_nothing_else(
    compiler: GrammarCompiler, part: Part, good: Sequence[str], bad: Sequence[str]
) -> None:
    assert [text for text in good if not accepts(compiler, part, text)] == []
    assert [text for text in bad if accepts(compiler, part, text)] == []


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (json_part({"type": "object", "properties": {"t": {"type": "text"}}}), "Invalid type: text"),
        (json_part({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_part({"not": {}}), "not"),
        (json_part({"enum": []}), "Unsatisfiable"),
        (json_part({"type": "string", "format": "no-such"}), "no-such"),
        (json_part({"$ref": "http://example.com/schema"}), "example.com"),
        (json_part({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no text fits it"),
        (json_part({"required": ["a"], "properties": {"a": False}, "type": "object"}), "unsatisfiable"),
        (regex_part("["), "unclosed character class"),
        (regex_part("a(?=b)"), "look-ahead"),
        (lark_part("start: nobody"), "nobody"),
        (lark_part("start: a\na: b\nb: a"), "no text fits it"),
        (lark_part("root ::= ((("), "Expected ')'"),
        (lark_part("root ::= " + "(" * 50_000), "cannot be followed"),
    ],
)
def test_what_is_no_grammar_is_refused_by_name_of_its_field(compiler: GrammarCompiler, part: Part, words: str) -> None:
    message = refusal(compiler, whole(part, "some.field"))
    assert message.startswith("some.field ")
    assert words in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "part",
    [
        json_part({"a": 1}),
        json_part(json.loads('{"items":' * 100 + "{}" + "}" * 100)),
        regex_part("(a{1000}){1000}"),
        regex_part("((((a{0,100}){0,100}){0,100}){0,100}){0,100}"),
        regex_part("(.*[ab].{20}|.*c.{30}){5}"),
        regex_part("(a|aa)+" * 50),
        lark_part("start: x\nx: x x | x x x | /[a-z]*/ | x x x x"),
        json_part({"type": "array", "minItems": 10**9}),
        json_part(
            {"anyOf": [{"type": "object", "properties": {f"k{i}": {"pattern": ".*a.{30}"}}} for i in range(100)]}
        ),
    ],
)
def test_no_text_takes_long_to_refuse_or_to_follow(compiler: GrammarCompiler, part: Part) -> None:
    """Bombs end in a refusal, or in a failed row, or are followed: no mask costs as much as a second."""
    grammar = whole(part, "field")
    start = time.perf_counter()
    preparation = compiler.prepare(grammar)
    if preparation.exception(timeout=30) is None:
        masks, state = GrammarMasks(compiler), GrammarState(grammar)
        new: list[int] = []
        for step in range(40):
            step_start = time.perf_counter()
            allowed = allowed_tokens(masks.masks([(state, new)])[0])
            assert time.perf_counter() - step_start < 2.0
            if not allowed or allowed == [END_ID]:
                break
            new = [allowed[(step * 7919) % len(allowed)]]
    assert time.perf_counter() - start < 20.0


def test_a_grammar_beyond_the_limit_is_refused_before_it_is_compiled() -> None:
    compiler = make_compiler(max_bytes=200)
    with pytest.raises(InvalidRequestError, match="--max-grammar-bytes is 200") as caught:
        compiler.prepare(whole(choice_part(["x" * 300]), "guided_choice"))
    assert caught.value.param == "guided_choice"


def test_the_same_text_is_compiled_once_and_old_ones_are_forgotten() -> None:
    compiler = make_compiler()
    first = whole(choice_part(["first"]), "field")
    compiler.prepare(first).result(30)
    kept = compiler.prepare(first)
    assert kept.done()
    for number in range(MAX_COMPILED):
        compiler.prepare(whole(choice_part([f"text {number}"]), "field")).result(30)
    assert compiler.prepare(first) is not kept
    assert compiler.matcher(first).is_error() is False  # whoever still runs with it gets it anew


def test_a_model_without_an_end_token_follows_no_grammar() -> None:
    with pytest.raises(ConfigurationError, match="no end token"):
        build_vocabulary(TOKENIZER, TOKENIZER.vocab_size, ())


def test_a_state_made_anew_from_an_output_allows_what_the_old_one_does(compiler: GrammarCompiler) -> None:
    """So a request that comes back after a preemption goes on where it was."""
    masks = GrammarMasks(compiler)
    grammar = whole(json_part(PERSON), "field")
    output = TOKENIZER.encode('{"name": "Ada", "tags": [1, {"a": 2')
    stepwise = GrammarState(grammar)
    for count, token in enumerate([None, *output]):
        told = [] if token is None else [token]
        anew = GrammarState(grammar)
        bits = masks.masks([(stepwise, told), (anew, output[:count])])
        assert (bits[0] == bits[1]).all()
        assert bits[0].any()


def test_masks_of_a_batch_do_not_mix(compiler: GrammarCompiler) -> None:
    masks = GrammarMasks(compiler)
    grammars = [whole(choice_part([letter]), "field") for letter in "abc"]
    bits = masks.masks([(GrammarState(grammar), []) for grammar in grammars])
    assert [allowed_tokens(row) for row in bits] == [[ord(letter)] for letter in "abc"]
    booleans = unpack(bits, 300)
    assert booleans.shape == (3, 300)
    assert [list(row.nonzero()[0]) for row in booleans] == [[ord(letter)] for letter in "abc"]


def test_an_output_that_does_not_follow_fails_its_row_alone(compiler: GrammarCompiler) -> None:
    masks = GrammarMasks(compiler)
    grammar = whole(choice_part(["ab"]), "field")
    bits = masks.masks([(GrammarState(grammar), [ord("x")]), (GrammarState(grammar), [ord("a")])])
    assert not bits[0].any()
    assert allowed_tokens(bits[1]) == [ord("b")]


def test_a_complete_grammar_allows_the_end_and_whatever_comes_behind_it_is_not_looked_at(
    compiler: GrammarCompiler,
) -> None:
    masks = GrammarMasks(compiler)
    state = GrammarState(whole(choice_part(["ab"]), "field"))
    assert allowed_tokens(masks.masks([(state, TOKENIZER.encode("ab"))])[0]) == [END_ID]
    assert allowed_tokens(masks.masks([(state, [END_ID])])[0]) == [END_ID]
    assert allowed_tokens(masks.masks([(state, [5])])[0]) == [END_ID]


def test_parts_are_put_together_by_name(compiler: GrammarCompiler) -> None:
    grammar = compose('start: "<" @inner ">" | "-"', {"inner": regex_part("[0-9]+")}, "field")
    state, masks = GrammarState(grammar), GrammarMasks(compiler)
    assert allowed_tokens(masks.masks([(state, [])])[0]) == [ord("-"), ord("<")]
    assert ord(">") in allowed_tokens(masks.masks([(state, TOKENIZER.encode("<12"))])[0])
