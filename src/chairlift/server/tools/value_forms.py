"""How the value of a parameter stands between tags: as text, as one of several texts, or as JSON.

Whoever makes a model write values and whoever reads them ask here, so that they agree. Knows nothing of tags.
"""

from collections.abc import Mapping, Sequence
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


def is_text(schema: Any) -> bool:
    """Whether any text is a value, and stands there as it is."""
    known = _members(schema)
    return known.get("type") == "string" and not known.keys() & _CONSTRAINTS


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


def is_json_value(schema: Any) -> bool:
    """Whether a model that follows the schema writes JSON."""
    return not is_text(schema) and not text_choices(schema)


def is_string(schema: Any) -> bool:
    """Whether a value can only be text, whatever its form."""
    return _members(schema).get("type") == "string" or bool(text_choices(schema))


def _members(schema: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else {}
