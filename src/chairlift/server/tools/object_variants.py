"""The ways in which an object may follow a JSON schema: what references, allOf, anyOf and oneOf at its top come to.

Knows nothing of tools or of how objects are written. ``oneOf`` is taken for ``anyOf``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

MAX_VARIANTS = 32
"""So many ways are told apart."""

_MAX_MEMBERS = 10_000
"""Of all schemas that are put together, whoever is put together twice counted twice."""
_MEMBERS_OF_PART = 20
"""What it counts to look at a part at all."""

_ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})


class VariantError(ValueError):
    """A schema is none, or not one of objects that could be written out; the text begins with the place in it."""


@dataclass(frozen=True, slots=True)
class ObjectVariant:
    """One way: the members that are named, and those of them that there must be."""

    properties: Mapping[str, Any] = field(default_factory=dict[str, Any])
    required: tuple[str, ...] = ()


def object_variants(schema: Mapping[str, Any]) -> list[ObjectVariant]:
    """All ways; none if no object follows the schema.

    Raises:
        VariantError: it is no schema, refers to what is not in it, or has too many ways.
    """
    try:
        return _Walk(schema).variants(schema, "")
    except RecursionError:
        raise VariantError(" is nested too deeply") from None


def follow(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema comes to that is nothing but a reference within ``root``, or one schema in an ``allOf``."""
    seen: list[Any] = []
    while isinstance(schema, Mapping):
        members = cast("Mapping[str, Any]", schema)
        said = members.keys() - _ANNOTATIONS
        parts = members.get("allOf")
        if said == {"allOf"} and isinstance(parts, list) and len(cast("list[Any]", parts)) == 1:
            schema = cast("list[Any]", parts)[0]
        elif said == {"$ref"} and members["$ref"] not in seen:
            seen.append(members["$ref"])
            try:
                schema = _target(members["$ref"], root)
            except VariantError:
                break
        else:
            break
    return cast("Any", schema)


def steps_of(reference: str) -> list[str]:
    """The names on the way that a reference within a schema says."""
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]


class _Walk:
    """Through one schema, no further than a few milliseconds last: references may lead to the same place often."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._num_left = _MAX_MEMBERS

    def variants(self, schema: Any, place: str, seen: tuple[str, ...] = ()) -> list[ObjectVariant]:
        """All ways to follow a part; ``seen`` are the references that led there."""
        self._count(_MEMBERS_OF_PART)
        if isinstance(schema, bool):
            return [ObjectVariant()] if schema else []
        if not isinstance(schema, Mapping):
            raise VariantError(f"{place} must be a schema: an object, true or false")
        members = cast("Mapping[str, Any]", schema)
        if not _may_be_object(members.get("type", "object")):
            return []
        found = [_own(members, place)]
        if "$ref" in members:
            reference = members["$ref"]
            if reference in seen:
                raise VariantError(f"{place}.$ref leads back to itself")
            target = _target(reference, self._root)
            found = self._both(found, self.variants(target, f"{place}.$ref", (*seen, reference)), place)
        for at, part in _listed(members, "allOf", place):
            found = self._both(found, self.variants(part, at, seen), place)
        for keyword in ("anyOf", "oneOf"):
            if keyword in members:
                parts = _listed(members, keyword, place)
                any_of = [variant for at, part in parts for variant in self.variants(part, at, seen)]
                found = self._both(found, any_of, place)
        return found

    def _both(self, some: Sequence[ObjectVariant], others: Sequence[ObjectVariant], place: str) -> list[ObjectVariant]:
        """Each with each; what says the same twice is left out."""
        found: list[ObjectVariant] = []
        for one in some:
            for other in others:
                self._count(len(one.properties) + len(other.properties) + len(found))
                variant = _merged(one, other)
                if variant not in found:
                    found.append(variant)
                if len(found) > MAX_VARIANTS:
                    raise VariantError(f"{place} can be followed in more than {MAX_VARIANTS} ways, which is too many")
        return found

    def _count(self, num_members: int) -> None:
        self._num_left -= num_members
        if self._num_left < 0:
            raise VariantError(f" combines schemas with more than {_MAX_MEMBERS} members in all, which is too many")


def _own(members: Mapping[str, Any], place: str) -> ObjectVariant:
    properties, required = members.get("properties"), members.get("required")
    properties = dict[str, Any]() if properties is None else properties
    required = list[str]() if required is None else required
    if not isinstance(properties, Mapping):
        raise VariantError(f"{place}.properties must be an object that maps names to schemas")
    if not isinstance(required, list) or not all(isinstance(key, str) for key in cast("list[Any]", required)):
        raise VariantError(f"{place}.required must be a list of names")
    named = cast("Mapping[str, Any]", properties)
    for key, schema in named.items():
        if not isinstance(schema, Mapping | bool):
            raise VariantError(f"{place}.properties['{key[:100]}'] must be a schema: an object, true or false")
    return ObjectVariant(named, tuple(cast("list[str]", required)))


def _merged(one: ObjectVariant, other: ObjectVariant) -> ObjectVariant:
    properties = dict(one.properties)
    for key, schema in other.properties.items():
        properties[key] = _intersection(properties[key], schema) if key in properties else schema
    return ObjectVariant(properties, tuple(dict.fromkeys((*one.required, *other.required))))


def _intersection(one: Any, other: Any) -> Any:
    if one == other or other is True or one is False:
        return one
    return other if one is True or other is False else {"allOf": [one, other]}


def _listed(members: Mapping[str, Any], keyword: str, place: str) -> Iterator[tuple[str, Any]]:
    parts = members.get(keyword, [])
    if not isinstance(parts, list):
        raise VariantError(f"{place}.{keyword} must be a list of schemas")
    for index, part in enumerate(cast("list[Any]", parts)):
        yield f"{place}.{keyword}[{index}]", part


def _may_be_object(kind: Any) -> bool:
    return "object" in kind if isinstance(kind, list) else kind == "object"


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise VariantError(f" refers to '{str(reference)[:100]}', but only '#/...' is followed")
    found: Any = root
    for name in steps_of(reference):
        if isinstance(found, Mapping) and name in found:
            found = cast("Mapping[str, Any]", found)[name]
        elif isinstance(found, list) and name in (places := _places(cast("list[Any]", found))):
            found = places[name]
        else:
            raise VariantError(f" refers to '{reference[:100]}', which is not there")
    return found


def _places(items: Sequence[Any]) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}
