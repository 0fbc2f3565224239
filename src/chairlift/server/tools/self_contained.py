"""Parts of a tool's schema that stand for themselves: each with the definitions that it refers to, and no others.

Knows nothing of what a part is for. A part that refers to another place than a definition gets the whole schema as a
definition of its own, since that is the root for whoever wrote the reference.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from chairlift.errors import InvalidRequestError
from chairlift.server.tools.object_variants import steps_of

_DEFINITIONS = ("$defs", "definitions")
_WHOLE = "chairlift-tool"
"""The definition that is the tool's whole schema."""

_MAX_COPIED = 2_000_000
"""Characters, roughly, of definitions that all parts of a request get: many times what a grammar may have."""
_CHARS_OF_VALUE = 8

_Name = tuple[str, str]
"""(keyword, name) of a definition."""


class Allowance:
    """How much may be copied for one request, whose parts may all refer to the same large definition."""

    def __init__(self) -> None:
        self._num_left = _MAX_COPIED

    def take(self, num_chars: int, param: str) -> None:
        """Count a copy.

        Raises:
            InvalidRequestError: it is too much.
        """
        self._num_left -= num_chars
        if self._num_left < 0:
            raise InvalidRequestError(
                f"{param}: its parameters refer to large definitions so often that their text together would have more "
                f"than {_MAX_COPIED} characters",
                param=param,
            )


class SelfContained:
    """Makes parts of one schema stand for themselves.

    Args:
        root: the tool's schema.
        param: the request's field that holds it, for errors.
        allowance: of the request.
    """

    def __init__(self, root: Mapping[str, Any], param: str, allowance: Allowance) -> None:
        self._root = root
        self._param = param
        self._allowance = allowance
        self._parts: dict[int, Any] = {}
        self._whole: tuple[Any, int] | None = None
        self._definitions: dict[_Name, tuple[frozenset[_Name | None], int]] = {}

    def part(self, schema: Any) -> Any:
        """A schema within the root, as one of its own; the same one for the same schema.

        Raises:
            InvalidRequestError: it is nested too deeply, or refers to too much.
        """
        if not isinstance(schema, Mapping):
            return schema
        members = cast("Mapping[str, Any]", schema)
        if id(members) not in self._parts:
            try:
                self._parts[id(members)] = self._made(members)
            except RecursionError as error:
                raise InvalidRequestError(f"{self._param} is nested too deeply", param=self._param) from error
        return self._parts[id(members)]

    def _made(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        needed = self._needed(_names(schema))
        if None in needed:
            if self._whole is None:
                self._whole = (_moved(self._root), _size(self._root))
            self._allowance.take(self._whole[1], self._param)
            return {**_moved(schema), "$defs": {_WHOLE: self._whole[0]}}
        shared: dict[str, dict[str, Any]] = {}
        for keyword, name in cast("set[_Name]", needed):
            group = self._group(keyword)
            # Whoever compiles it says that one is not there.
            if name in group:
                self._allowance.take(self._definitions[keyword, name][1], self._param)
                shared.setdefault(keyword, {})[name] = group[name]
        return {**schema, **shared}

    def _needed(self, names: Iterable[_Name | None]) -> set[_Name | None]:
        """Definitions that these lead to; ``None`` stands for any other place."""
        found: set[_Name | None] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            if name is not None:
                waiting.extend(self._known(name)[0])
        return found

    def _known(self, name: _Name) -> tuple[frozenset[_Name | None], int]:
        if name not in self._definitions:
            definition = self._group(name[0]).get(name[1])
            self._definitions[name] = (frozenset(_names(definition)), _size(definition))
        return self._definitions[name]

    def _group(self, keyword: str) -> Mapping[str, Any]:
        group: Any = self._root.get(keyword)
        return cast("Mapping[str, Any]", group) if isinstance(group, Mapping) else {}


def _names(value: Any) -> Iterator[_Name | None]:
    """Where the references in a schema lead."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _names(item)
    elif isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        target = members.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            steps = steps_of(target)
            yield (steps[0], steps[1]) if len(steps) > 1 and steps[0] in _DEFINITIONS else None
        for item in members.values():
            yield from _names(item)


def _size(value: Any) -> int:
    if isinstance(value, list):
        return _CHARS_OF_VALUE + sum(map(_size, cast("list[Any]", value)))
    if isinstance(value, Mapping):
        return sum(len(key) + _size(item) for key, item in cast("Mapping[str, Any]", value).items()) + _CHARS_OF_VALUE
    return _CHARS_OF_VALUE + (len(value) if isinstance(value, str) else 0)


def _moved(value: Any) -> Any:
    """A schema whose references begin at the definition of the tool's schema."""
    if isinstance(value, list):
        return [_moved(item) for item in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _moved(item) for key, item in cast("Mapping[str, Any]", value).items()}
    target = moved.get("$ref")
    if isinstance(target, str) and (target == "#" or target.startswith("#/")):
        moved["$ref"] = f"#/$defs/{_WHOLE}{target[1:]}"
    return moved
