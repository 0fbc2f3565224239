"""Parts of a JSON schema: where its references lead, which parts say the same, and what looking at them may take.

Knows nothing of what the parts are for. Whoever wrote a schema decides how often the same part is met, so each is
looked at once, and what cannot be is counted.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

_MAX_MEMBERS = 30_000
"""Of all schemas of a request that are put together, whoever is put together twice counted twice."""
_MAX_CHARS = 500_000
"""Of all schemas of a request that are compared; one within another is counted with both."""

_ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})

_ANYTHING, _NOTHING = 0, 1
"""Numbers of the schemas ``true`` and ``false``."""


class SchemaError(ValueError):
    """A schema is none, or takes too much; the text begins with the place in it."""


class Effort:
    """What may be done for the schemas of one request: a few milliseconds, as others wait meanwhile."""

    def __init__(self) -> None:
        self._num_members_left = _MAX_MEMBERS
        self._num_chars_left = _MAX_CHARS

    def combine(self, num_members: int) -> None:
        """Count members of schemas that are put together.

        Raises:
            SchemaError: they are too many.
        """
        self._num_members_left -= num_members
        if self._num_members_left < 0:
            raise SchemaError(f" combines schemas with more than {_MAX_MEMBERS} members in all, which is too many")

    def compare(self, num_chars: int) -> None:
        """Count the text of a schema that is compared with others.

        Raises:
            SchemaError: it is too much.
        """
        self._num_chars_left -= num_chars
        if self._num_chars_left < 0:
            raise SchemaError(f" combines schemas with more than {_MAX_CHARS} characters in all, which is too many")


class References:
    """Where the references within one schema lead; each is followed once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}
        self._followed: dict[int, Any] = {}

    def target(self, reference: Any) -> Any:
        """What stands where a reference leads.

        Raises:
            SchemaError: it leads out of the schema, or nowhere.
        """
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(f" refers to '{str(reference)[:100]}', but only '#/...' is followed")
        if reference not in self._targets:
            self._targets[reference] = self._find(reference)
        return self._targets[reference]

    def follow(self, schema: Any) -> Any:
        """What a part comes to that is nothing but a reference, or one schema in an ``allOf``.

        The part must live as long as this does.
        """
        if not isinstance(schema, Mapping) or ("$ref" not in schema and "allOf" not in schema):
            return cast("Any", schema)
        passed: dict[int, None] = {}
        while isinstance(schema, Mapping) and id(cast("Any", schema)) not in self._followed:
            members = cast("Mapping[str, Any]", schema)
            behind = () if id(members) in passed else self._behind(members)
            passed[id(members)] = None
            if not behind:
                break
            schema = behind[0]
        own = self._followed.get(id(cast("Any", schema)), cast("Any", schema))
        self._followed.update(dict.fromkeys(passed, own))
        return own

    def _behind(self, members: Mapping[str, Any]) -> tuple[()] | tuple[Any]:
        """The one thing that a schema says, if that is another schema."""
        said = members.keys() - _ANNOTATIONS
        parts = members.get("allOf")
        if said == {"allOf"} and isinstance(parts, list) and len(cast("list[Any]", parts)) == 1:
            return (cast("list[Any]", parts)[0],)
        if said != {"$ref"}:
            return ()
        try:
            return (self.target(members["$ref"]),)
        except SchemaError:
            return ()

    def _find(self, reference: str) -> Any:
        found: Any = self._root
        for name in steps_of(reference):
            if isinstance(found, Mapping) and name in found:
                found = cast("Mapping[str, Any]", found)[name]
            elif isinstance(found, list) and (place := _place(name, cast("list[Any]", found))) is not None:
                found = cast("list[Any]", found)[place]
            else:
                raise SchemaError(f" refers to '{reference[:100]}', which is not there")
        return found


class SchemaNumbers:
    """Numbers for the parts of one schema: those that say the same have the same one.

    The parts must live as long as this does.
    """

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._by_identity: dict[int, int] = {}
        self._by_text: dict[str, int] = {}
        self._by_members: dict[tuple[int, ...], int] = {}
        self._members: list[tuple[int, ...]] = []
        self._schemas: list[Any] = []
        self._both: dict[tuple[int, int], int] = {}
        for schema in (True, False):
            self.number(schema)

    def number(self, schema: Any) -> int:
        """The number of a part.

        Raises:
            SchemaError: this and those before it have too much text.
        """
        number = self._by_identity.get(id(schema))
        if number is None:
            text = json.dumps(schema, sort_keys=True)
            self._effort.compare(len(text))
            number = self._by_text.get(text)
            if number is None:
                number = self._by_text[text] = self._add((len(self._members),), schema)
            self._by_identity[id(schema)] = number
        return number

    def both(self, one: int, other: int) -> int:
        """The number of what follows both schemas.

        Raises:
            SchemaError: too much was put together.
        """
        if one in (other, _NOTHING) or other == _ANYTHING:
            return one
        if one == _ANYTHING or other == _NOTHING:
            return other
        if (one, other) not in self._both:
            members = tuple(dict.fromkeys((*self._members[one], *self._members[other])))
            self._effort.combine(len(members))
            number = self._by_members.get(members)
            if number is None:
                number = self._add(members, {"allOf": [self._schemas[member] for member in members]})
            self._both[one, other] = number
        return self._both[one, other]

    def schema(self, number: int) -> Any:
        """The schema, the same one each time."""
        return self._schemas[number]

    def _add(self, members: tuple[int, ...], schema: Any) -> int:
        number = self._by_members[members] = len(self._schemas)
        self._members.append(members)
        self._schemas.append(schema)
        return number


def steps_of(reference: str) -> list[str]:
    """The names on the way that a reference within a schema says."""
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]


def _place(name: str, items: Sequence[Any]) -> int | None:
    """Where a reference leads in a list; numbers have no zeros before them."""
    if not (name.isascii() and name.isdigit()) or len(name) > len(str(len(items))):
        return None
    place = int(name)
    return place if place < len(items) and name == str(place) else None
