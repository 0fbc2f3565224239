"""Fields that change nothing: marked in their schema, or not known within an object, and found in a request so that its
answer can name them. Knows nothing of endpoints.

A field is named by where it is, ``messages[].content[].cache_control``, once however many objects have it. Of a long
list only the ends are looked at, since turns of a conversation are much alike but for the first and the last ones.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple, cast, get_args

from pydantic import BaseModel, Field

from chairlift.server.openai.fields import IGNORED

NO_EFFECT = "x-no-effect"
"""In the schema of a field that changes nothing: why."""

ENDS = (32, 4)
"""Objects at either end of a list of the request, and of a list within one of its objects, that are looked at."""
MAX_OBJECTS = 1024
"""Objects in one field of the request that are looked at."""
MAX_NAMES = 32
"""Names that are told."""

_WRITABLE = re.compile(r"[A-Za-z0-9_.$-]{1,64}", re.ASCII)
_UNWRITABLE = "?"
_MORE = "..."


def no_effect(why: str) -> Any:
    """A field that must have its type, and changes nothing."""
    return Field(None, description=f"No effect: {why}.", json_schema_extra={NO_EFFECT: why})


def names_without_effect(body: BaseModel) -> list[str]:
    """Fields that a request has and that change nothing, in order; of more than :data:`MAX_NAMES` only the first ones.

    Of the body itself only those that are known; within it, whatever asks for something.
    """
    names = {name for name, value in (body.model_extra or {}).items() if name in IGNORED and value is not None}
    names.update(_marked_in(body))
    for field in _shape(type(body)).parts:
        for path, part in islice(_parts_in(body, field, "", ENDS), MAX_OBJECTS):
            names.update(path + name for name in _marked_in(part))
            if part.model_extra:
                names.update(path + _writable(name) for name, value in part.model_extra.items() if _asks(value))
    found = sorted(names)
    return found if len(found) <= MAX_NAMES else [*found[:MAX_NAMES], _MORE]


class _Shape(NamedTuple):
    """Of a model: fields that change nothing, and with their names those that hold objects or lists of them."""

    marked: frozenset[str]
    parts: tuple[tuple[str, str], ...]


@cache
def _shape(model: type[BaseModel]) -> _Shape:
    extras: dict[str, Any] = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    marked = frozenset(name for name, extra in extras.items() if isinstance(extra, dict) and NO_EFFECT in extra)
    parts = {name: field for name, field in model.model_fields.items() if _mentions_model(field.annotation)}
    return _Shape(marked, tuple((name, field.alias or name) for name, field in parts.items()))


def _mentions_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, BaseModel)
    return any(map(_mentions_model, get_args(annotation)))


def _parts_in(
    model: BaseModel, field: tuple[str, str], path: str, ends: tuple[int, int]
) -> Iterator[tuple[str, BaseModel]]:
    """Objects within a field, and within these, each with its path."""
    attribute, name = field
    value: Any = getattr(model, attribute)
    if isinstance(value, list):
        path, num_each = f"{path}{name}[].", ends[0]
        items = cast("list[Any]", value)
        some = items if len(items) <= 2 * num_each else chain(items[:num_each], items[-num_each:])
        ends = (ends[1], ends[1])
    else:
        path, some = f"{path}{name}.", (value,)
    for item in some:
        if isinstance(item, BaseModel):
            yield path, item
            for inner in _shape(type(item)).parts:
                yield from _parts_in(item, inner, path, ends)


def _marked_in(model: BaseModel) -> Iterable[str]:
    marked = _shape(type(model)).marked
    return [name for name in marked & model.model_fields_set if getattr(model, name) is not None] if marked else ()


def _asks(value: object) -> bool:
    """Whether a field that is not known could have meant anything: what clients send empty by themselves did not."""
    return value is not None and value is not False and value not in ("", [], {})


def _writable(name: str) -> str:
    """A client's own name as a header can have it."""
    return name if _WRITABLE.fullmatch(name) else _UNWRITABLE
