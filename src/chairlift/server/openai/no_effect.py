"""Fields that are checked and change nothing: marked in their schema, and found in a request so that its answer can
name them. Knows nothing of endpoints.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, Field

from chairlift.server.openai.fields import IGNORED

NO_EFFECT = "x-no-effect"
"""In the schema of a field that changes nothing: why."""


def no_effect(why: str) -> Any:
    """A field that must have its type, and changes nothing."""
    return Field(None, description=f"No effect: {why}.", json_schema_extra={NO_EFFECT: why})


def names_without_effect(body: BaseModel) -> list[str]:
    """Fields that a request has and that change nothing, those of an object within it as ``object.field``; in order.

    Objects in lists are not looked at.
    """
    names = [name for name, value in (body.model_extra or {}).items() if name in IGNORED and value is not None]
    names.extend(_marked_in(body))
    for field in body.model_fields_set:
        part = getattr(body, field, None)
        if isinstance(part, BaseModel):
            names.extend(f"{field}.{name}" for name in _marked_in(part))
    return sorted(names)


def _marked_in(model: BaseModel) -> Iterator[str]:
    marked = _marked_fields(type(model))
    return (name for name in model.model_fields_set & marked if getattr(model, name) is not None)


@cache
def _marked_fields(model: type[BaseModel]) -> frozenset[str]:
    extras: dict[str, Any] = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    return frozenset(name for name, extra in extras.items() if isinstance(extra, dict) and NO_EFFECT in extra)
