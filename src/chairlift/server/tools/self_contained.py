"""Parts of a tool's schema that stand for themselves: each with the definitions that it refers to, and no others.

Knows nothing of what a part is for. A part that refers to another place than a definition gets the whole schema as a
definition of its own, since that is the root for whoever wrote the reference.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from chairlift.errors import InvalidRequestError
from chairlift.server.tools.schema_parts import Effort, steps_of

_DEFINITIONS = ("$defs", "definitions")
_WHOLE = "chairlift-tool"
"""The definition that is the tool's whole schema."""

_MAX_COPIED = 1_000_000
"""Characters, roughly, of all parts of a request with their definitions: many times what a grammar may have."""
_CHARS_OF_VALUE = 16
"""It counts as many at least, since it takes as long."""
_CHARS_OF_PART = 400
"""Whatever it is, with the rules that a grammar has for it."""
_CHARS_OF_STEP = 150
"""From one definition to the next that it needs."""

_Name = tuple[str, str]
"""(keyword, name) of a definition."""


class Allowance:
    """How much may be done for one request, whose parts may all refer to the same large definition."""

    def __init__(self) -> None:
        self.effort = Effort()
        self._num_left = _MAX_COPIED

    def take(self, num_chars: int, param: str) -> None:
        """Count what is looked at or copied.

        Raises:
            InvalidRequestError: it is too much.
        """
        self._num_left -= num_chars
        if self._num_left < 0:
            raise InvalidRequestError(
                f"{param}: its parameters are so large, or refer to large definitions so often, that their text "
                f"together would have more than {_MAX_COPIED} characters",
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
        self._whole: tuple[Mapping[str, Any], int] | None = None
        self._shared: dict[frozenset[_Name | None], tuple[Mapping[str, Any], int]] = {}
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

    def _made(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        names, num_chars = _read(schema)
        if names not in self._shared:
            self._shared[names] = self._definitions_for(names)
        found = self._shared[names]
        self._allowance.take(_CHARS_OF_PART + num_chars + found[1], self._param)
        return {**(_moved(schema) if found is self._whole else schema), **found[0]}

    def _definitions_for(self, names: frozenset[_Name | None]) -> tuple[Mapping[str, Any], int]:
        """What a part gets that has these references, and the size of that."""
        needed = self._needed(names)
        if None in needed:
            if self._whole is None:
                self._whole = ({"$defs": {_WHOLE: _moved(self._root)}}, _read(self._root)[1])
            return self._whole
        shared: dict[str, dict[str, Any]] = {}
        num_chars = 0
        for keyword, name in cast("set[_Name]", needed):
            group = self._group(keyword)
            # Whoever compiles it says that one is not there.
            if name in group:
                num_chars += self._known(keyword, name)[1]
                shared.setdefault(keyword, {})[name] = group[name]
        return shared, num_chars

    def _needed(self, names: Iterable[_Name | None]) -> set[_Name | None]:
        """Definitions that these lead to; ``None`` stands for any other place."""
        found: set[_Name | None] = set()
        waiting = list(names)
        while waiting:
            self._allowance.take(_CHARS_OF_STEP, self._param)
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            if name is not None:
                waiting.extend(self._known(*name)[0])
        return found

    def _known(self, keyword: str, name: str) -> tuple[frozenset[_Name | None], int]:
        if (keyword, name) not in self._definitions:
            self._definitions[keyword, name] = _read(self._group(keyword).get(name))
        return self._definitions[keyword, name]

    def _group(self, keyword: str) -> Mapping[str, Any]:
        group: Any = self._root.get(keyword)
        return cast("Mapping[str, Any]", group) if isinstance(group, Mapping) else {}


def _read(value: Any) -> tuple[frozenset[_Name | None], int]:
    """Where the references in a schema lead, and its size in characters, roughly."""
    names: set[_Name | None] = set()
    num_chars, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        num_chars += _CHARS_OF_VALUE
        if isinstance(value, str):
            num_chars += len(value)
        elif isinstance(value, list):
            waiting.extend(cast("list[Any]", value))
        # Nearly all are no other mapping, and that is found out sooner.
        elif isinstance(value, dict | Mapping):
            members = cast("Mapping[str, Any]", value)
            num_chars += sum(map(len, members))
            waiting.extend(members.values())
            target = members.get("$ref")
            if isinstance(target, str) and target.startswith("#"):
                steps = steps_of(target)
                names.add((steps[0], steps[1]) if len(steps) > 1 and steps[0] in _DEFINITIONS else None)
    return frozenset(names), num_chars


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
