"""From what a request asks for to the text of a grammar: JSON schemas, regular expressions, choices, Lark and GBNF.

Knows nothing of vocabularies: whether a text is a grammar at all is found out when it is compiled.

A text is JSON, ``{"grammars": [...]}``: a Lark grammar named ``start`` that refers to the others by ``@name``. So parts
can be put together without rewriting them: what may come before an answer, the answer, the calls of tools.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chairlift.core.grammar import Grammar
from chairlift.errors import InvalidRequestError
from chairlift.structured.character_classes import with_ecma_classes

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of JSON mode."""

MAX_WHITESPACE = 16
"""Spaces, tabs and line breaks in a row between the tokens of JSON: enough to indent, and no model can get lost in
them."""

_JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": f"[ \\t\\n\\r]{{1,{MAX_WHITESPACE}}}",
}


SCHEMA_KEY = "json_schema"
WRITTEN_KEY = "written"
"""Part whose text somebody wrote, in Lark's notation or in GBNF; where it is compiled it may cost less than others."""


@dataclass(frozen=True, slots=True)
class Part:
    """One grammar of several; ``body`` is its text without the name.

    ``owner`` says what it is in words, and which field of the request it comes from, where that is not the field of the
    whole.
    """

    body: Mapping[str, Any]
    owner: tuple[str, str] | None = None

    def named(self, name: str) -> dict[str, Any]:
        """This part as the library takes it."""
        return {"name": name, **self.body}


def json_part(schema: Any, owner: tuple[str, str] | None = None) -> Part:
    """JSON that a schema accepts; ``True`` accepts any."""
    if isinstance(schema, Mapping):
        schema = {**cast("Mapping[str, Any]", schema), "x-guidance": dict(_JSON_OPTIONS)}
    elif schema is True:
        schema = {"x-guidance": dict(_JSON_OPTIONS)}
    return Part({SCHEMA_KEY: schema}, owner)


def regex_part(pattern: str) -> Part:
    """The whole output matches; look-around and back-references are not known."""
    return Part({"lark_grammar": f"start: TEXT\nTEXT: {quote_pattern(with_ecma_classes(pattern))}\n"})


def choice_part(choices: Sequence[str]) -> Part:
    """One of these texts."""
    # As one terminal: alternatives of a rule would be followed one by one.
    return Part({"lark_grammar": f"start: TEXT\nTEXT: {' | '.join(map(quote_text, choices))}\n"})


def lark_part(text: str) -> Part:
    """A grammar in Lark's notation with a rule ``start``, or in GBNF (``root ::= ...``), which is translated."""
    return Part({WRITTEN_KEY: text})


def quote_text(text: str) -> str:
    """A text as a terminal of Lark."""
    return json.dumps(text)


def quote_pattern(pattern: str) -> str:
    """A regular expression as a terminal of Lark, where it stands between slashes."""
    escaped: list[str] = []
    is_escape = False
    for character in pattern:
        if character == "/" and not is_escape:
            escaped.append("\\/")
        elif character == "\n":
            escaped.append("n" if is_escape else "\\n")
        else:
            escaped.append(character)
        is_escape = character == "\\" and not is_escape
    return f"/{''.join(escaped)}/"


def compose(start: str, parts: Mapping[str, Part], param: str) -> Grammar:
    """Put parts together: ``start`` is Lark and refers to them as ``@name``."""
    grammars = [{"name": "start", "lark_grammar": start}, *(part.named(name) for name, part in parts.items())]
    owners = tuple((name, *part.owner) for name, part in parts.items() if part.owner is not None)
    return Grammar(_dump({"grammars": grammars}, param), param, owners)


def whole(part: Part, param: str) -> Grammar:
    """The grammar of an output that is one part and nothing else."""
    return Grammar(_dump({"grammars": [dict(part.body)]}, param), param)


def _dump(value: Mapping[str, Any], param: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (RecursionError, ValueError) as error:
        raise InvalidRequestError(f"{param} is nested too deeply or holds no valid text", param=param) from error
    return text
