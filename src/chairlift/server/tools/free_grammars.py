"""Grammars that let a model write what it likes until it calls a tool, and hold it to the tool's schema there.

Knows nothing of how calls are read. For tools with ``strict`` where the model may choose whether to call::

    text as it comes  MARKER  call  text as it comes  MARKER  call  text without a marker

Tools that are not strict may be called with any arguments.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from chairlift.server.tools.formats import HERMES_END, HERMES_START, LLAMA_TAG, MISTRAL_ARGUMENTS, MISTRAL_START
from chairlift.server.tools.grammars import (
    Lark,
    Quote,
    Tool,
    argument_parts,
    json_bodies,
    repeated,
    tagged_bodies,
)
from chairlift.server.tools.qwen3_coder import CALL_END, CALL_START, FUNCTION_END, FUNCTION_START
from chairlift.structured.sources import quote_text

_MANY_CALLS = 128
"""In one list, where the request says no number."""

_GAP = "gap: /[ \\t\\n]{0,4}/\n"


def hermes_free(tools: Sequence[Tool], max_calls: int | None, quote: Quote) -> Lark:
    """``<tool_call>`` anywhere in the text."""
    tools = _relaxed(tools)
    rules = _GAP + json_bodies(tools, "arguments")
    calls = {HERMES_START: f"gap body gap {quote(HERMES_END)}"}
    return Lark(_behind_text(calls, max_calls, quote) + rules, argument_parts(tools))


def llama_free(tools: Sequence[Tool], max_calls: int | None, quote: Quote) -> Lark:
    """Calls are the whole answer: one that begins with a brace is one."""
    tools = _relaxed(tools)
    calls = repeated("body", max_calls or _MANY_CALLS, quote_text("; "))
    tag = re.escape(LLAMA_TAG)
    rules = (
        f"free: gap {quote(LLAMA_TAG)}? gap {calls} | TEXT\n"
        f"TEXT: /(?s:.*)/ & ~/[ \\t\\n\\r]*({tag}|\\{{)(?s:.*)/\n{_GAP}"
    )
    return Lark(rules + json_bodies(tools, "parameters"), argument_parts(tools))


def mistral_free(tools: Sequence[Tool], max_calls: int | None, quote: Quote) -> Lark:
    """``[TOOL_CALLS]`` before a list, or before a name and its arguments, whichever the model was taught."""
    tools = _relaxed(tools)
    listed = repeated("body", max_calls or _MANY_CALLS, '"," gap')
    named = [f"{quote_text(tool.name)} arguments_mark @arguments_{index}" for index, tool in enumerate(tools)]
    rules = (
        f'listed: "[" {listed} "]"\nnamed: {" | ".join(named)}\n'
        f"arguments_mark: {quote(MISTRAL_ARGUMENTS)}?\n{_GAP}{json_bodies(tools, 'arguments')}"
    )
    calls = {MISTRAL_START: "gap (listed | named)"}
    return Lark(_behind_text(calls, max_calls, quote) + rules, argument_parts(tools))


def qwen3_coder_free(tools: Sequence[Tool], max_calls: int | None, quote: Quote) -> Lark:
    """Tags anywhere in the text; some answers leave the outer one out."""
    inside = tagged_bodies(_relaxed(tools))
    function = quote_text(FUNCTION_END)
    calls = {
        CALL_START: f"gap {quote_text(FUNCTION_START)} inside {function} gap {quote(CALL_END)}",
        FUNCTION_START: f"inside {function}",
    }
    return Lark(_behind_text(calls, max_calls, quote) + _GAP + inside.rules, inside.parts)


def _relaxed(tools: Sequence[Tool]) -> list[Tool]:
    return [tool if tool.is_strict else replace(tool, parameters={}, takes_anything=True) for tool in tools]


def _behind_text(calls: Mapping[str, str], max_calls: int | None, quote: Quote) -> str:
    """Lark for ``free``: text, with a call behind each marker; ``calls`` says for each marker what it looks like."""
    lines, rest = list[str](), "/(?s:.*)/"
    for index, (marker, call) in enumerate(calls.items()):
        written, expression = quote(marker), re.escape(marker)
        if written.startswith('"'):
            lines.append(f"marker_{index}[lazy]: /(?s:.*){expression}/")
            rest += f" & ~/(?s:.*){expression}(?s:.*)/"
        else:
            # A special token is no text, so no text can contain it.
            lines.append(f"marker_{index}: BEFORE_{index} {written}\nBEFORE_{index}: /(?s:.*)/")
        lines.append(f"call_{index}: marker_{index} {call}")
    one = " | ".join(f"call_{index}" for index in range(len(calls)))
    repeat = "*" if max_calls is None else f"{{0,{max_calls}}}"
    return f"free: ({one}){repeat} REST\nREST: {rest}\n" + "\n".join(lines) + "\n"
