"""What hostile grammars cost the step that they are in, and whether real ones are followed, on the embedded model's
vocabulary and through the code that serves.

Knows nothing of models: an allowed token is drawn at random, the shortest or the longest ones. Beside the request that
is measured run four that write a list of texts. ``python benchmarks/grammar_bombs.py [--choices 64] [NAME ...]``
"""

import argparse
import logging
import string
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.config.model_source import resolve_model_source
from chairlift.core.grammar import Grammar
from chairlift.errors import InvalidRequestError
from chairlift.server.tools.grammars import Tool, forced_calls, free_answer
from chairlift.server.tools.table import TOOL_FORMATS
from chairlift.structured.compiler import GrammarCompiler
from chairlift.structured.masks import GrammarMasks, GrammarState, allowed_tokens
from chairlift.structured.sources import Part, choice_part, json_part, lark_part, quote_text, regex_part, whole
from chairlift.structured.vocabulary import build_vocabulary
from chairlift.tokenization import Tokenizer, load_tokenizer

NUM_STEPS = 150
STEP_TIME_S = 0.1
LETTERS = string.ascii_lowercase


def cubic(num_rules: int, start: str = '"x" "y"') -> Part:
    """A row in which as many rules end as there are, each in as many ways."""
    numbers = range(num_rules)
    rules = [
        f'start: {start} all "!"',
        "all: " + " | ".join(f"each t{number}" for number in numbers),
        "each: " + " | ".join(f"c{number}" for number in numbers),
        *(f't{number}: "z" | "b{number}"' for number in numbers),
        *(f'c{number}: LETTER | LETTER "k{number}"' for number in numbers),
        "LETTER: /[a-z]/",
    ]
    return lark_part("\n".join(rules))


def members(count: int) -> dict[str, Any]:
    """Properties of an object, all of them optional."""
    return {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(count)}}


def lexemes(count: int, pattern: str) -> Part:
    """Many terminals that match the same texts for a long time."""
    named = [f"L{number}: /{pattern.format(letter=LETTERS[number % 26], number=number)}/" for number in range(count)]
    return lark_part("\n".join([f"start: ({' | '.join(f'L{number}' for number in range(count))})+", *named]))


HOSTILE: dict[str, Part] = {
    "ambiguous": lark_part('start: e "!"\ne: e e | e e e | e e e e | /[a-zA-Z0-9]/'),
    "ambiguous, spaces ignored": lark_part('start: e "!"\ne: e e | e e e | e e e e | /[a-z]/\n%ignore /[ \\n]+/'),
    "nullable": lark_part('start: e "!"\ne: "" | e e | f f f | /[a-z]/\nf: "" | e | f e'),
    "right recursion": lark_part('start: e "!"\ne: C e | C | C e e\nC: /[a-zA-Z]/'),
    "palindromes": lark_part(
        'start: e "!"\ne: ' + " | ".join(f'"{one}" e "{one}"' for one in LETTERS) + ' | e e | "-"'
    ),
    "40 rules of each other": lark_part(
        'start: r0 "!"\n' + "\n".join(f"r{i}: r{(i + 1) % 40} r{(i * 7 + 3) % 40} | /[a-z]/" for i in range(40))
    ),
    "nested repetition": lark_part('start: (((a{0,30}){0,30}){0,30}){0,30} "!"\na: /[a-z]/ | ""'),
    "captures": lark_part('start: e "!"\ne[capture="a"]: e e | x\nx[capture="b"]: /[a-z]/'),
    "cubic, 300 rules": cubic(300),
    "cubic, 440 rules": cubic(440),
    "cubic, 1,500 rules": cubic(1500),
    "cubic, late": cubic(400, '"xyxyxyxyxyxyxyxyxyxyxy" /[0-9]{3}/ "a" "b"'),
    "expression with counters": regex_part("(.*[ab].{20}|.*c.{30}){5}"),
    "expression with nested counters": regex_part("(a{0,300}|[ab]{0,300}c?){0,50}!"),
    "expression of Unicode classes": regex_part("(\\p{L}{1,200}[^\\p{Lu}]{0,200}){1,20}"),
    "expressions and complements": lark_part("start: T\nT: /(.*[a-m].{12}){1,9}/ & ~/(.*[n-z].{13}){1,9}/"),
    "400 terminals": lexemes(400, "[a-z]{{{number},400}}[{letter}-z][0-9]{{{number}}}"),
    "200 terminals with counters": lexemes(200, "(?s:.*){letter}(?s:.){{{number}}}x"),
    "schema of 100 patterns": json_part(
        {"anyOf": [{"type": "string", "pattern": f".*{LETTERS[i % 26]}.{{{20 + i % 11}}}"} for i in range(100)]}
    ),
    "schema of ambiguous lists": json_part(
        {
            "anyOf": [
                {"type": "array", "items": {"anyOf": [{"type": "string", "maxLength": i + j} for j in range(100)]}}
                for i in range(100)
            ]
        }
    ),
    "schema of 900 optional members": json_part(members(900)),
}

SQL = """
start: select ";"
select: "SELECT"i columns "FROM"i table join* where? group? order? limit?
columns: "*" | expr ("AS"i NAME)? ("," expr ("AS"i NAME)?)*
table: NAME ("AS"i? NAME)? | "(" select ")" "AS"i NAME
join: ("LEFT"i | "RIGHT"i | "INNER"i)? "JOIN"i table "ON"i expr
where: "WHERE"i expr
group: "GROUP"i "BY"i expr ("," expr)* ("HAVING"i expr)?
order: "ORDER"i "BY"i expr ("ASC"i | "DESC"i)? ("," expr ("ASC"i | "DESC"i)?)*
limit: "LIMIT"i NUMBER
expr: both ("OR"i both)*
both: not ("AND"i not)*
not: "NOT"i not | compared
compared: sum (("=" | "<>" | "<" | ">" | "<=" | ">=" | "LIKE"i | "IN"i) sum)?
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | TEXT | NAME ("." NAME)? | NAME "(" (expr ("," expr)*)? ")" | "(" expr ")" | "(" select ")"
NAME: /[a-zA-Z_][a-zA-Z_0-9]*/
NUMBER: /[0-9]+(\\.[0-9]+)?/
TEXT: /'[^']*'/
%ignore /[ \\t\\n]+/
"""
C = """
root ::= (declaration)*
declaration ::= type " " name "(" parameter? ")" "{" statement* "}"
type ::= "int" | "float" | "char"
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type " " name
statement ::= type " " name " = " expression ";" | name " = " expression ";" | name "(" arguments? ")" ";" |
  "return " expression ";" | "while (" condition ") {" statement* "}" | "for (" loop ") {" statement* "}" |
  "if (" condition ") {" statement* "}" ("else {" statement* "}")?
loop ::= type " " name " = " expression "; " condition "; " name " = " expression
condition ::= expression (" == " | " != " | " < " | " <= " | " >= " | " > ") expression
expression ::= term ((" + " | " - ") term)*
term ::= factor ((" * " | " / ") factor)*
factor ::= name | number | "-" factor | name "(" arguments? ")" | "(" expression ")"
arguments ::= expression (", " expression)*
number ::= [0-9]+
"""


def tools(count: int) -> list[Tool]:
    """Functions with what schemas of functions have."""
    return [
        Tool(
            f"tool_{number}_search",
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    f"limit_{number}": {"type": "integer", "minimum": 1, "maximum": 100},
                    "mode": {"enum": ["fast", "slow", f"mode {number}"]},
                    "filters": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "field": {"type": "string"},
                                "operator": {"enum": ["=", "<", ">"]},
                                "value": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                            },
                            "required": ["field", "operator", "value"],
                        },
                    },
                },
                "required": ["query"],
                "additionalProperties": False,
            },
            is_strict=True,
        )
        for number in range(count)
    ]


def strict(parser: str, count: int) -> Grammar:
    """Tools that a model may call, and then as their schemas say."""
    make = TOOL_FORMATS[parser].free
    if make is None:
        raise ValueError(parser)
    return free_answer(make(tools(count), None, quote_text), None, "tools")


REAL: dict[str, Part | Grammar] = {
    "any JSON": json_part(True),
    "100 objects of 10 members": json_part(
        {
            "type": "object",
            "properties": {f"field_{number}": members(10) for number in range(100)},
            "required": [f"field_{number}" for number in range(100)],
        }
    ),
    "200 optional members": json_part(members(200)),
    "one of 512 objects": json_part(
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"tool": {"const": tool.name}, "arguments": tool.parameters},
                    "required": ["tool", "arguments"],
                    "additionalProperties": False,
                }
                for tool in tools(512)
            ]
        }
    ),
    "10 texts of 5,000 characters": json_part(
        {
            "type": "object",
            "properties": {f"text_{i}": {"type": "string", "minLength": 10, "maxLength": 5000} for i in range(10)},
            "required": [f"text_{number}" for number in range(10)],
        }
    ),
    "enumeration of 2,000": json_part({"enum": [f"option number {number * 7919}" for number in range(2000)]}),
    "choice of 4,000": choice_part([f"option {number * 7919}" for number in range(4000)]),
    "expression for addresses": regex_part(r"([\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,5}, ){0,20}end"),
    "64 tools, forced": forced_calls(TOOL_FORMATS["hermes"].grammar(tools(64), 16, quote_text), None, "tools"),
    "512 tools, forced": forced_calls(TOOL_FORMATS["hermes"].grammar(tools(512), 16, quote_text), None, "tools"),
    "64 strict tools, Hermes": strict("hermes", 64),
    "64 strict tools, Llama 3": strict("llama3_json", 64),
    "64 strict tools, Mistral": strict("mistral", 64),
    "64 strict tools, Qwen 3 Coder": strict("qwen3_coder", 64),
    "512 strict tools, Hermes": strict("hermes", 512),
    "SQL, in Lark": lark_part(SQL),
    "C, in GBNF": lark_part(C),
}


class Writers:
    """Requests with one grammar, each of which writes what it likes."""

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar, count: int, taste: str) -> None:
        self.states = [GrammarState(grammar) for _ in range(count)]
        self._outputs: list[list[int]] = [[] for _ in range(count)]
        self._rng = np.random.default_rng(0)
        self._taste = taste
        self._lengths = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
        self._special_ids = np.array(sorted(tokenizer.special_ids))

    def rows(self) -> list[tuple[GrammarState, list[int]]]:
        """What a mask is asked with."""
        return [(state, output[state.num_read :]) for state, output in zip(self.states, self._outputs, strict=True)]

    def write(self, bits: NDArray[np.int32]) -> bool:
        """Draw the next tokens; ``False`` once one can write nothing but its end."""
        for output, row in zip(self._outputs, bits, strict=True):
            allowed = np.setdiff1d(allowed_tokens(row), self._special_ids)
            if not len(allowed):
                return False
            lengths = self._lengths[allowed]
            wanted = {"shortest": lengths.min(), "longest": lengths.max()}.get(self._taste)
            output.append(int(self._rng.choice(allowed if wanted is None else allowed[lengths == wanted])))
        return True


def measure(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, count: int) -> str:
    """Cells of a line: time to compile, worst and mean step, and how it ended."""
    start = time.perf_counter()
    try:
        compiler.prepare(grammar).result()
    except InvalidRequestError as error:
        return f"{(time.perf_counter() - start) * 1000:.0f} | | | refused: {error.message.partition(': ')[2][:70]}"
    compile_ms = (time.perf_counter() - start) * 1000
    times, endings = list[float](), set[str]()
    for taste in ("shortest", "longest", "random"):
        fresh = Grammar(grammar.source, grammar.param)  # a request of its own
        masks, writers = GrammarMasks(compiler), Writers(tokenizer, fresh, count, taste)
        others = Writers(
            tokenizer, whole(json_part({"type": "array", "items": {"type": "string"}}), "other"), 4, "random"
        )
        for _ in range(NUM_STEPS):
            start = time.perf_counter()
            bits = masks.masks([*writers.rows(), *others.rows()])
            times.append((time.perf_counter() - start) * 1000)
            failed = [state.failure for state in writers.states if state.failure]
            if failed:
                endings.add(f"ends: {' '.join(failed[0].split())[:70]}")
                break
            if not writers.write(bits[:count]) or not others.write(bits[count:]):
                break
    return f"{compile_ms:.0f} | {max(times):.1f} | {np.mean(times):.1f} | {'; '.join(sorted(endings)) or 'followed'}"


def report(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    table: Mapping[str, Part | Grammar],
    names: Sequence[str],
    count: int,
) -> None:
    """Print a table."""
    print("| Grammar | compile, ms | worst step, ms | mean | |\n| --- | ---: | ---: | ---: | --- |")
    for name, part in table.items():
        if not names or name in names:
            grammar = part if isinstance(part, Grammar) else whole(part, "grammar")
            print(f"| {name} | {measure(compiler, tokenizer, grammar, count)} |", flush=True)


def main() -> None:
    """Measure the hostile ones and the real ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--choices", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    tokenizer = load_tokenizer(resolve_model_source(None))
    compiler = GrammarCompiler(
        lambda end_tokens: build_vocabulary(tokenizer, tokenizer.vocab_size, end_tokens),
        max_bytes=2**20,
        timeout_s=10.0,
        step_time_s=STEP_TIME_S,
        end_tokens=tokenizer.eos_token_ids,
    )
    compiler.prepare(whole(json_part(True), "warm")).result()
    for table in (HOSTILE, REAL):
        report(compiler, tokenizer, table, given.names, given.choices)
    compiler.close()


if __name__ == "__main__":
    main()
