"""How the value of a parameter stands between tags: as text, as one of several texts, or as JSON.

Whoever makes a model write values and whoever reads them ask here, so that they agree. Knows nothing of tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_CONSTRAINTS = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "const",
        "else",
        "enum",
        "format",
        "if",
        "maxLength",
        "minLength",
        "not",
        "oneOf",
        "pattern",
        "then",
    }
)
"""What a schema of text may ask for beyond being text."""


@dataclass(frozen=True, slots=True)
class ValueForm:
    """Whether a value stands there as JSON, and whether it can only be text, whatever its form."""

    is_json: bool
    is_string: bool


ANY_TEXT = ValueForm(is_json=False, is_string=True)
ANY_JSON = ValueForm(is_json=True, is_string=False)


def form_of(schema: Any) -> ValueForm:
    """How the values of a schema are written."""
    known = _members(schema)
    kind = known.get("type")
    if kind == "string" and known.keys().isdisjoint(_CONSTRAINTS):
        return ANY_TEXT
    if ("enum" in known or "const" in known) and text_choices(known):
        return ANY_TEXT
    return ValueForm(is_json=True, is_string=True) if kind == "string" else ANY_JSON


def text_choices(schema: Any) -> Sequence[str]:
    """The texts of which one is the value, and stands there as it is; none if the value is anything else."""
    known = _members(schema)
    asked = known.keys() & _CONSTRAINTS
    if known.get("type", "string") != "string" or asked not in ({"enum"}, {"const"}):
        return ()
    choices: Any = known["enum"] if "enum" in asked else [known["const"]]
    if not isinstance(choices, list):
        return ()
    # What might be taken for the end of a value is safe only within the quotes of JSON.
    texts = [choice for choice in cast("list[Any]", choices) if isinstance(choice, str) and "</" not in choice]
    return texts if len(texts) == len(cast("list[Any]", choices)) else ()


def _members(schema: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else {}
