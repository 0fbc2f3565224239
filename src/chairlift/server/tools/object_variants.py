"""The ways in which an object may follow a JSON schema: what references, allOf, anyOf and oneOf at its top come to.

Knows nothing of tools or of how objects are written. ``oneOf`` is taken for ``anyOf``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from chairlift.server.tools.schema_parts import Effort, References, SchemaError, SchemaNumbers

MAX_VARIANTS = 32
"""So many ways are told apart."""

_MEMBERS_OF_PART = 20
"""What it counts to look at a part at all."""

_COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


@dataclass(frozen=True, slots=True)
class ObjectVariant:
    """One way: the members that are named, and those of them that there must be."""

    properties: Mapping[str, Any] = field(default_factory=dict[str, Any])
    required: tuple[str, ...] = ()


def object_variants(schema: Mapping[str, Any], effort: Effort) -> list[ObjectVariant]:
    """All ways; none if no object follows the schema.

    Args:
        schema: of the object.
        effort: what putting its parts together may take.

    Raises:
        SchemaError: it is no schema, refers to what is not in it, or has too many ways.
    """
    if not schema.keys() & _COMBINING:
        return [_own(schema, "")] if _may_be_object(schema.get("type", "object")) else []
    walk = _Walk(schema, effort)
    try:
        return [walk.variant(way) for way in walk.ways(schema, "")]
    except RecursionError:
        raise SchemaError(" is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class _Way:
    """A variant that has the number of each schema, so that two are compared at once, however large they are."""

    properties: Mapping[str, int] = field(default_factory=dict[str, int])
    required: Mapping[str, None] = field(default_factory=dict[str, None])

    @property
    def num_members(self) -> int:
        return len(self.properties) + len(self.required)


class _Walk:
    """Through one schema, no further than a few milliseconds last: references may lead to the same place often."""

    def __init__(self, root: Mapping[str, Any], effort: Effort) -> None:
        self._references = References(root)
        self._effort = effort
        self._numbers = SchemaNumbers(effort)

    def variant(self, way: _Way) -> ObjectVariant:
        """A way with its schemas."""
        schemas = {key: self._numbers.schema(number) for key, number in way.properties.items()}
        return ObjectVariant(schemas, tuple(way.required))

    def ways(self, schema: Any, place: str, seen: tuple[str, ...] = ()) -> list[_Way]:
        """All ways to follow a part; ``seen`` are the references that led there."""
        self._effort.combine(_MEMBERS_OF_PART)
        if isinstance(schema, bool):
            return [_Way()] if schema else []
        if not isinstance(schema, Mapping):
            raise SchemaError(f"{place} must be a schema: an object, true or false")
        members = cast("Mapping[str, Any]", schema)
        if not _may_be_object(members.get("type", "object")):
            return []
        found = [self._own(members, place)]
        if "$ref" in members:
            reference = members["$ref"]
            if reference in seen:
                raise SchemaError(f"{place}.$ref leads back to itself")
            target = self._references.target(reference)
            found = self._both(found, self.ways(target, f"{place}.$ref", (*seen, reference)), place)
        for at, part in _listed(members, "allOf", place):
            found = self._both(found, self.ways(part, at, seen), place)
        for keyword in ("anyOf", "oneOf"):
            if keyword in members:
                parts = _listed(members, keyword, place)
                any_of = [way for at, part in parts for way in self.ways(part, at, seen)]
                found = self._both(found, any_of, place)
        return found

    def _own(self, members: Mapping[str, Any], place: str) -> _Way:
        own = _own(members, place)
        self._effort.combine(len(own.properties) + len(own.required))
        numbers = {key: self._numbers.number(schema) for key, schema in own.properties.items()}
        return _Way(numbers, dict.fromkeys(own.required))

    def _both(self, some: Sequence[_Way], others: Sequence[_Way], place: str) -> list[_Way]:
        """Each with each; what says the same twice is left out."""
        found: dict[Any, _Way] = {}
        for one in some:
            for other in others:
                self._effort.combine(one.num_members + other.num_members)
                way = self._merged(one, other)
                found.setdefault((frozenset(way.properties.items()), frozenset(way.required)), way)
                if len(found) > MAX_VARIANTS:
                    raise SchemaError(f"{place} can be followed in more than {MAX_VARIANTS} ways, which is too many")
        return list(found.values())

    def _merged(self, one: _Way, other: _Way) -> _Way:
        properties = dict(one.properties)
        for key, number in other.properties.items():
            properties[key] = self._numbers.both(properties[key], number) if key in properties else number
        return _Way(properties, {**one.required, **other.required})


def _own(members: Mapping[str, Any], place: str) -> ObjectVariant:
    properties, required = members.get("properties"), members.get("required")
    properties = dict[str, Any]() if properties is None else properties
    required = list[str]() if required is None else required
    if not isinstance(properties, Mapping):
        raise SchemaError(f"{place}.properties must be an object that maps names to schemas")
    if not isinstance(required, list) or not all(isinstance(key, str) for key in cast("list[Any]", required)):
        raise SchemaError(f"{place}.required must be a list of names")
    named = cast("Mapping[str, Any]", properties)
    for key, schema in named.items():
        if not isinstance(schema, Mapping | bool):
            raise SchemaError(f"{place}.properties['{key[:100]}'] must be a schema: an object, true or false")
    return ObjectVariant(named, tuple(cast("list[str]", required)))


def _listed(members: Mapping[str, Any], keyword: str, place: str) -> Iterator[tuple[str, Any]]:
    parts = members.get(keyword, [])
    if not isinstance(parts, list):
        raise SchemaError(f"{place}.{keyword} must be a list of schemas")
    for index, part in enumerate(cast("list[Any]", parts)):
        yield f"{place}.{keyword}[{index}]", part


def _may_be_object(kind: Any) -> bool:
    return "object" in kind if isinstance(kind, list) else kind == "object"
