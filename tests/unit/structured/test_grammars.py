"""Grammars: what their texts accept, what is refused and how, and masks that follow an output however it came about."""

import json
import logging
import random
import time
from collections.abc import Callable, Sequence

import pytest

from benchmarks.grammar_bombs import cubic
from chairlift.core.grammar import Grammar
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.errors import ConfigurationError, InvalidRequestError
from chairlift.structured import compiler as compiler_module
from chairlift.structured.compiler import MAX_COMPILED, GrammarCompiler, find_error
from chairlift.structured.mask_budget import MaskBudget
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


def make_compiler(max_bytes: int = 100_000, step_time_s: float | None = 0.1) -> GrammarCompiler:
    return GrammarCompiler(
        lambda end_tokens: build_vocabulary(TOKENIZER, TOKENIZER.vocab_size, end_tokens),
        max_bytes=max_bytes,
        timeout_s=10.0,
        step_time_s=step_time_s,
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
    masks, grammar = GrammarMasks(compiler), whole(part, "field")
    compiler.prepare(grammar).exception(timeout=30)
    state = GrammarState(grammar)
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


def test_a_schema_that_nothing_fits_is_no_trouble_of_the_server(
    compiler: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert "no text fits it" in refusal(compiler, whole(json_part(schema), "tools"))
    state, masks = GrammarState(whole(json_part(schema), "tools")), GrammarMasks(compiler)
    assert not masks.masks([(state, [])]).any()
    assert any("tools" in record.getMessage() for record in caplog.records)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


AMBIGUOUS = lark_part('start: e "!"\ne: e e | e e e | e e e e | /[a-zA-Z0-9]/')


@pytest.mark.parametrize(
    "part",
    [
        AMBIGUOUS,
        cubic(200),
        cubic(440),
        cubic(440, '"abcdefghij" /[0-9]/ "x" "y"'),
        cubic(1200),
        lark_part('start: e "!"\ne: "" | e e | f f f | /[a-z]/\nf: "" | e | f e'),
        lark_part('start: e "!"\ne: C e | C | C e e\nC: /[a-zA-Z]/'),
        lark_part('start: e "!"\ne[capture="a"]: e e | x\nx[capture="b"]: /[a-z]/'),
        lark_part('start: (((a{0,30}){0,30}){0,30}){0,30} "!"\na: /[a-z]/ | ""'),
        lark_part('start: p::0\np::_: "a" p::incr(_) | "b" p::set_bit(1) | q::_ | ""\nq::_: "" | q::incr(_)'),
        lark_part("root ::= (x | y)* [!]\nx ::= [a-z]* y? [a-z]*\ny ::= x x | [a-z]+"),
        json_part({"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(900)}}),
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
    """Bombs end in a refusal, or in a failed row, or are followed: no step costs much more than the tenth of a second
    that it may, however busy the machine is."""
    grammar = whole(part, "field")
    start = time.perf_counter()
    preparation = compiler.prepare(grammar)
    if preparation.exception(timeout=30) is None:
        masks, state = GrammarMasks(compiler), GrammarState(grammar)
        new: list[int] = []
        for step in range(40):
            step_start = time.perf_counter()
            allowed = allowed_tokens(masks.masks([(state, new)])[0])
            assert time.perf_counter() - step_start < 1.0
            if not allowed or allowed == [END_ID]:
                break
            new = [allowed[(step * 7919) % len(allowed)]]
    assert time.perf_counter() - start < 20.0


def test_a_mask_that_takes_too_long_fails_its_own_request_and_its_grammar_is_compiled_anew() -> None:
    compiler = make_compiler(step_time_s=0.005)
    masks, good = GrammarMasks(compiler), whole(choice_part(["ab", "ac"]), "field")
    grammar = whole(cubic(400, '"a" /[0-9]/ "x" "y"'), "field")
    compiler.prepare(grammar).result(30)
    states = [GrammarState(grammar), GrammarState(good), GrammarState(grammar)]
    first = masks.masks([(state, []) for state in states])
    assert first.any(axis=1).all()
    before = states[0].compiled
    bits = masks.masks([(states[0], TOKENIZER.encode("a1")), (states[1], [ord("a")]), (states[2], [])])
    assert "--grammar-step-time" in (states[0].failure or "")
    assert allowed_tokens(bits[0]) == []
    assert allowed_tokens(bits[1]) == [ord("b"), ord("c")]
    # Whoever else is in the middle of this grammar would wait for the lost one.
    assert not masks.masks([(states[2], TOKENIZER.encode("a"))]).any()
    assert not masks.masks([(states[0], [])]).any()
    compiler.prepare(grammar).result(30)
    anew = GrammarState(grammar)
    assert allowed_tokens(masks.masks([(anew, [])])[0]) == [ord("a")]
    assert anew.compiled is not before


def test_a_first_mask_that_takes_too_long_is_a_refusal() -> None:
    message = refusal(make_compiler(step_time_s=0.002), whole(cubic(440), "some.field"))
    assert message.startswith("some.field cannot be followed: ")
    assert "--grammar-step-time" in message


def test_the_choices_of_a_request_have_one_budget_and_other_requests_their_own(compiler: GrammarCompiler) -> None:
    masks = GrammarMasks(compiler)
    grammar, equal = whole(AMBIGUOUS, "field"), whole(AMBIGUOUS, "field")
    choices, other = [GrammarState(grammar), GrammarState(grammar)], GrammarState(equal)
    rows = [(state, [ord("a")]) for state in (*choices, other)]
    assert masks.masks([(state, []) for state, _ in rows]).any(axis=1).all()
    assert choices[0].budget is not None
    choices[0].budget.spend(10**9, num_masks=1)
    bits = masks.masks(rows)
    assert [bool(row.any()) for row in bits] == [False, False, True]
    assert "--grammar-step-time" in (choices[1].failure or "")


def test_a_budget_is_what_one_step_may_take_and_a_tenth_more_with_every_step() -> None:
    budget = MaskBudget(100_000_000)
    budget.begin(1)
    budget.spend(1_000_000, num_masks=1)  # nothing beyond the usual
    budget.spend(61_000_000, num_masks=1)
    for step in range(2, 5):
        for _ in range(8):  # choices that are in the same step
            budget.begin(step)
        assert not budget.is_spent
    budget.spend(71_000_000, num_masks=1)
    assert not budget.is_spent  # 100 - 60 + 3 * 10 - 70 = 0
    budget.spend(1_100_000, num_masks=1)
    assert budget.is_spent
    budget.begin(100)
    assert budget.is_spent  # for good
    unlimited = MaskBudget(None)
    unlimited.spend(10**12)
    assert not unlimited.is_spent


def test_whoever_finds_the_states_of_a_grammar_used_up_begins_anew_with_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests with the same grammar share its states, for as long as it is known: their number must end nobody."""
    monkeypatch.setitem(compiler_module._LIMITS, "max_lexer_states", 600)
    compiler = make_compiler()
    masks, grammar = GrammarMasks(compiler), whole(regex_part("(.*[ab].{8}|.*c.{9}){2}end"), "field")
    compiler.prepare(grammar).result(30)
    used = set()
    for number in range(13):
        rng = random.Random(number)
        state, output = GrammarState(grammar), TOKENIZER.encode("".join(rng.choice("abcx") for _ in range(24)))
        for end in range(len(output) + 1):
            bits = masks.masks([(state, output[state.num_read : end])])
            assert state.failure is None
            assert ord("a") in allowed_tokens(bits[0])
            used.add(state.compiled)
    assert len(used) > 1


def test_expressions_that_cost_too_much_end_their_own_request_and_no_other_that_shares_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(compiler_module._LIMITS, "step_lexer_fuel", 900)
    compiler = make_compiler()
    masks, grammar = GrammarMasks(compiler), whole(regex_part("z(.*[ab].{8}|.*c.{9}){2}end|y[a-z]*"), "field")
    compiler.prepare(grammar).result(30)
    texts = ["y" + "q" * 30, "z" + "abcx" * 8, "y" + "q" * 30, "z" + "abcx" * 8, "yes"]
    states = [GrammarState(grammar) for _ in texts]
    outputs = [TOKENIZER.encode(text) for text in texts]
    allowed: list[bool] = []
    for end in range(30):
        rows = [(state, output[state.num_read : end]) for state, output in zip(states, outputs, strict=True)]
        allowed = [bool(row.any()) for row in masks.masks(rows)]
    assert [state.failure is None for state in states] == [True, False, True, False, True]
    assert allowed == [True, False, True, False, True]
    for state in (states[1], states[3]):
        assert "more than 900 derivatives in a step" in (state.failure or "")
    assert compiler.prepare(grammar).result(30).is_used_up is False


def test_without_a_limit_a_mask_may_take_what_it_takes() -> None:
    compiler = make_compiler(step_time_s=None)
    masks, state = GrammarMasks(compiler), GrammarState(whole(cubic(150, '"ab" "x" "y"'), "field"))
    output = TOKENIZER.encode("abxya")
    for end in range(len(output)):
        assert output[end] in allowed_tokens(masks.masks([(state, output[max(0, end - 1) : end])])[0])


def test_thousands_of_choices_are_followed_to_the_end(compiler: GrammarCompiler) -> None:
    texts = [f"option {number * 7919}" for number in range(3000)]
    assert accepts(compiler, choice_part(texts), texts[-1])
    assert not accepts(compiler, choice_part(texts), "option 2")


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
    assert compiler.compiled(first).matcher().is_error() is False  # whoever still runs with it gets it anew


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


def chain_of_rules(length: int, define: str = ":") -> str:
    """Rules of which each needs the next one."""
    first = "root" if define == "::=" else "start"
    rules = [f"{first} {define} r0", *(f'r{i} {define} "a" r{i + 1}' for i in range(length)), f'r{length} {define} "b"']
    return "\n".join(rules) + "\n"


def chain_of_definitions(length: int, link: Callable[[object], object]) -> dict[str, object]:
    """Definitions of which each needs the next one."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"type": "null"}}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (chain_of_rules(6000), "6002 rules, but 2000 is the most"),
        (chain_of_rules(5000, "::="), "5002 rules, but 1000 is the most"),
        ("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9000)), "rules"),
    ],
    ids=["many", "gbnf", "units"],
)
def test_rules_that_need_each_other_without_end_are_refused_and_hurt_nobody(text: str, words: str) -> None:
    """The library recurses as deep as they go: on a usual stack, that ended the process."""
    start_s = time.thread_time()
    assert words in refusal(make_compiler(131_072), whole(lark_part(text), "field"))
    assert time.thread_time() - start_s < 1.0


@pytest.mark.parametrize(
    ("length", "link"),
    [
        (2800, lambda link: link),
        (1200, lambda link: {"type": "object", "properties": {"a": link}, "required": ["a"]}),
        (2500, lambda link: {"items": link}),
    ],
    ids=["references", "objects", "lists"],
)
def test_schemas_that_refer_on_and_on_are_followed(length: int, link: Callable[[object], object]) -> None:
    compiler = make_compiler(131_072, step_time_s=None)
    grammar = whole(json_part(chain_of_definitions(length, link)), "field")
    preparation = compiler.prepare(grammar)
    preparation.exception(timeout=60)
    assert find_error(preparation, grammar) is None


def test_large_but_shallow_grammars_are_no_chains() -> None:
    words = [f'    | "w{i}: {i}"' for i in range(1900)]
    compiler = make_compiler(131_072)
    grammar = whole(lark_part('start: "a"\n' + "\n".join(words)), "field")
    preparation = compiler.prepare(grammar)
    preparation.exception(timeout=60)
    error = find_error(preparation, grammar)
    assert error is None or "rules" not in error.message
