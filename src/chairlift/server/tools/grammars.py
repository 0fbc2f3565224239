"""Grammars that make a model call tools, each in the form that its format reads. Knows nothing of how that is read.

A call's arguments are a grammar of their own (``@arguments_0``), so that references within a tool's schema stay what
they are.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.grammar import Grammar
from chairlift.server.tools.qwen3_coder import BEHIND_PARAMETER
from chairlift.server.tools.self_contained import Allowance
from chairlift.server.tools.tagged_parameters import TaggedParameter, tagged_variants
from chairlift.server.tools.value_forms import text_choices
from chairlift.structured.sources import Part, compose, json_part, quote_text

_MAX_NAME = 100
"""Characters of a parameter's name that an error shows."""

MAX_FORCED_CALLS = 16
"""Calls in one answer that is forced to call."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; ``parameters`` is a JSON schema, and ``is_strict`` says that the arguments
    must follow it even where the model is free to call or not.
    """

    name: str
    parameters: Mapping[str, Any]
    is_strict: bool = False
    takes_anything: bool = False
    """Whether parameters that the schema does not name may stand among the tags of Qwen 3 Coder."""
    param: str = "tools"
    """The request's field that holds the parameters, for errors."""


Quote = Callable[[str], str]
"""A marker as a terminal of Lark: a special token by its id, other text as it is."""


@dataclass(frozen=True, slots=True)
class Lark:
    """Rules in Lark, of which ``calls`` is the first, and the grammars that they refer to."""

    rules: str
    parts: Mapping[str, Part]


CallGrammar = Callable[[Sequence[Tool], int, Quote], Lark]
"""(tools, calls at most, how markers are written) -> one call or more."""


FreeGrammar = Callable[[Sequence[Tool], int | None, Quote], Lark]
"""(tools, calls at most, how markers are written) -> an answer that may call: its first rule is ``free``."""


def hermes_grammar(tools: Sequence[Tool], max_calls: int, quote: Quote) -> Lark:
    """``<tool_call>`` lines."""
    calls = repeated("call", max_calls, '"\\n"')
    start, end = quote("<tool_call>"), quote("</tool_call>")
    rules = f'calls: {calls}\ncall: {start} "\\n" body "\\n" {end}\n{json_bodies(tools, "arguments")}'
    return Lark(rules, argument_parts(tools))


def llama_grammar(tools: Sequence[Tool], max_calls: int, quote: Quote) -> Lark:
    """Bare objects, with semicolons between them."""
    del quote
    rules = f"calls: {repeated('body', max_calls, quote_text('; '))}\n{json_bodies(tools, 'parameters')}"
    return Lark(rules, argument_parts(tools))


def mistral_grammar(tools: Sequence[Tool], max_calls: int, quote: Quote) -> Lark:
    """A list behind the marker."""
    calls = repeated("body", max_calls, quote_text(", "))
    rules = f'calls: {quote("[TOOL_CALLS]")} "[" {calls} "]"\n{json_bodies(tools, "arguments")}'
    return Lark(rules, argument_parts(tools))


def list_grammar(tools: Sequence[Tool], max_calls: int, quote: Quote) -> Lark:
    """A list."""
    del quote
    calls = repeated("body", max_calls, quote_text(", "))
    return Lark(f'calls: "[" {calls} "]"\n{json_bodies(tools, "parameters")}', argument_parts(tools))


def qwen3_coder_grammar(tools: Sequence[Tool], max_calls: int, quote: Quote) -> Lark:
    """Tags; parameters come in the order of the schema, and those that it does not require may be left out."""
    start, end = quote("<tool_call>"), quote("</tool_call>")
    inside = tagged_bodies(tools)
    calls = repeated("call", max_calls, quote_text("\n"))
    call = f'call: {start} "\\n<function=" inside "</function>\\n" {end}'
    return Lark(f"calls: {calls}\n{call}\n{inside.rules}", inside.parts)


def tagged_bodies(tools: Sequence[Tool]) -> Lark:
    """Rules for ``inside``: what stands between ``<function=`` and ``</function>``."""
    parts: dict[str, Part] = {}
    behind = "|".join(re.escape(marker).replace("/", "\\/") for marker in BEHIND_PARAMETER)
    lines = [
        f"inside: {' | '.join(f'inside_{index}' for index in range(len(tools)))}",
        "text[lazy]: TEXT_TO_END",
        # Readers know an end tag within text only by what is around it.
        f"TEXT_TO_END: /((?s:.*)\\n)?<\\/parameter>\\n/ & ~/(?s:.*)<\\/parameter>[ \\t\\r\\n]*({behind})(?s:.*)/",
    ]
    allowance = Allowance()
    for index, tool in enumerate(tools):
        written = _TaggedRules(index, tool)
        variants = tagged_variants(tool.parameters, tool.param, allowance)
        ways = [" ".join(map(written.member, variant)) for variant in variants]
        members = [ways[0] if len(ways) == 1 else f"({' | '.join(way or quote_text('') for way in ways)})"]
        if tool.takes_anything:
            members.append('("<parameter=" /[^>\\n]+/ ">\\n" text)*')
        lines.extend(written.lines)
        parts.update(written.parts)
        opening = quote_text(f"{tool.name}>\n")
        lines.append(f"inside_{index}: {opening} {' '.join(members)}")
    return Lark("\n".join(lines) + "\n", parts)


class _TaggedRules:
    """Rules for the parameters of one tool, each once, in however many ways of its schema it stands."""

    def __init__(self, index: int, tool: Tool) -> None:
        self._index = index
        self._tool = tool
        self._names: dict[tuple[str, int], str] = {}
        self._values: dict[tuple[int, bool], str] = {}
        self.lines: list[str] = []
        self.parts: dict[str, Part] = {}

    def member(self, parameter: TaggedParameter) -> str:
        """Lark for a parameter where it stands; its rule is among :attr:`lines`."""
        known = (parameter.key, id(parameter.own))
        rule = self._names.get(known)
        if rule is None:
            place = f"{self._index}_{len(self._names)}"
            rule = self._names[known] = f"parameter_{place}"
            opening = quote_text(f"<parameter={parameter.key}>\n")
            self.lines.append(f"{rule}: {opening} {self._value(parameter, place)}")
        return rule if parameter.is_required else f"{rule}?"

    def _value(self, parameter: TaggedParameter, place: str) -> str:
        own = parameter.schema if parameter.form.is_json else parameter.own
        known = (id(own), parameter.form.is_json)
        if known not in self._values:
            self._values[known] = self._new_value(parameter, place)
        return self._values[known]

    def _new_value(self, parameter: TaggedParameter, place: str) -> str:
        if not parameter.form.is_json:
            return self._choice(text_choices(parameter.own), f"CHOICE_{place}")
        owner = f"parameter '{parameter.key[:_MAX_NAME]}' of tool '{self._tool.name}'"
        self.parts[f"value_{place}"] = json_part(parameter.schema, (owner, self._tool.param))
        return f'@value_{place} "\\n</parameter>\\n"'

    def _choice(self, choices: Sequence[str], name: str) -> str:
        if not choices:
            return "text"
        ends = " | ".join(quote_text(f"{choice}\n</parameter>\n") for choice in choices)
        self.lines.append(f"{name}: {ends}")
        return name


def forced_calls(lark: Lark, reasoning: str | None, param: str) -> Grammar:
    """The grammar of an answer that consists of calls, behind its reasoning if it has any."""
    return _behind_reasoning("calls", lark.rules, lark.parts, reasoning, param)


def free_answer(lark: Lark, reasoning: str | None, param: str) -> Grammar:
    """The grammar of an answer that may call tools and must call them well, behind its reasoning if it has any."""
    return _behind_reasoning("free", lark.rules, lark.parts, reasoning, param)


def held_answer(part: Part, reasoning: str | None, param: str) -> Grammar:
    """The grammar of an answer that is one part, behind its reasoning if it has any."""
    return _behind_reasoning("answer", "answer: @answer_part\n", {"answer_part": part}, reasoning, param)


def calls_or_answer(lark: Lark, part: Part, reasoning: str | None, param: str) -> Grammar:
    """The grammar of an answer that is either calls or one part."""
    rules = f"either: calls | @answer_part\n{lark.rules}"
    return _behind_reasoning("either", rules, {**lark.parts, "answer_part": part}, reasoning, param)


def reasoning_rule(opening: str, quote: Quote) -> str:
    """Lark for what comes before an answer of a model that reasons: ``opening`` is where the answer begins."""
    # A marker that is a special token is no text, so no text can contain it.
    end = quote("</think>")
    is_text = end.startswith('"')
    closing = "think[lazy]: /(?s:.*)<\\/think>/\n" if is_text else f"think: ANYTHING {end}\nANYTHING: /(?s:.*)/\n"
    body = "think space" if opening == "inside" else f"({quote('<think>')} think space)?"
    return f"reasoning: {body}\n{closing}space: /[ \\n]{{0,4}}/\n"


def _behind_reasoning(rule: str, rules: str, parts: Mapping[str, Part], reasoning: str | None, param: str) -> Grammar:
    if reasoning is None:
        return compose(f"start: {rule}\n{rules}", parts, param)
    return compose(f"start: reasoning {rule}\n{rules}{reasoning}", parts, param)


def repeated(rule: str, max_times: int, separator: str) -> str:
    """Lark for a rule once or more, with a separator."""
    return rule if max_times == 1 else f"{rule} ({separator} {rule}){{0,{max_times - 1}}}"


def json_bodies(tools: Sequence[Tool], arguments_key: str) -> str:
    """Lark for ``body``: an object with the name of a tool and its arguments."""
    lines = [f"body: {' | '.join(f'body_{index}' for index in range(len(tools)))}"]
    for index, tool in enumerate(tools):
        opening = quote_text(f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": ')
        lines.append(f'body_{index}: {opening} @arguments_{index} "}}"')
    return "\n".join(lines) + "\n"


def argument_parts(tools: Sequence[Tool]) -> dict[str, Part]:
    """The arguments of each tool as grammars of their own."""
    return {
        f"arguments_{index}": json_part({"type": "object", **tool.parameters}, (f"tool '{tool.name}'", tool.param))
        for index, tool in enumerate(tools)
    }
