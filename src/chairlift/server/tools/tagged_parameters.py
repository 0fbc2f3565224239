"""The parameters of a tool one by one, as tags name them: which there are, and the schema of each.

Knows nothing of grammars, nor of how values are written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chairlift.errors import InvalidRequestError

_DEFINITIONS = ("$defs", "definitions")
_WHOLE = "chairlift-tool"
"""The definition that is the tool's whole schema."""


@dataclass(frozen=True, slots=True)
class TaggedParameter:
    """One parameter; ``schema`` stands for itself, with all definitions that it refers to."""

    key: str
    schema: Any
    is_required: bool


def tagged_parameters(parameters: Mapping[str, Any], param: str) -> list[TaggedParameter]:
    """The parameters that a schema names, in its order; those that can have no value are left out.

    Args:
        parameters: the schema of a tool's arguments, as a request has it.
        param: the request's field that holds it, for errors.

    Raises:
        InvalidRequestError: it is no schema of an object whose members can be written as tags.
    """
    properties, required = parameters.get("properties"), parameters.get("required")
    properties = dict[str, Any]() if properties is None else properties
    required = list[str]() if required is None else required
    if not isinstance(properties, Mapping):
        raise InvalidRequestError(f"{param}.properties must be an object that maps names to schemas", param=param)
    if not isinstance(required, list) or not all(isinstance(key, str) for key in cast("list[Any]", required)):
        raise InvalidRequestError(f"{param}.required must be a list of names", param=param)
    found: list[TaggedParameter] = []
    for key, schema in cast("Mapping[str, Any]", properties).items():
        if not isinstance(schema, Mapping | bool):
            raise InvalidRequestError(
                f"{param}.properties['{key[:100]}'] must be a schema: an object, true or false", param=param
            )
        if ">" in key or "\n" in key or key != key.strip():
            raise InvalidRequestError(
                f"{param}.properties['{key[:100]}'] cannot be written as a tag: its name has '>', a line break, or "
                "white space around it",
                param=param,
            )
        is_required = key in cast("Sequence[str]", required)
        if schema is False and is_required:
            raise InvalidRequestError(
                f"{param}.properties['{key[:100]}'] is required and can have no value", param=param
            )
        if schema is not False:
            found.append(TaggedParameter(key, _self_contained(schema, parameters, param), is_required))
    return found


def _self_contained(schema: Any, parameters: Mapping[str, Any], param: str) -> Any:
    """A member's schema with the definitions that it may refer to."""
    if not isinstance(schema, Mapping):
        return schema
    member = cast("Mapping[str, Any]", schema)
    shared = {key: parameters[key] for key in _DEFINITIONS if key in parameters}
    try:
        if not _refers_elsewhere([member, shared]):
            return {**shared, **member}
        # The root is the tool's schema for whoever wrote the reference, so it becomes a definition of its own.
        return {**_moved(member), "$defs": {_WHOLE: _moved(parameters)}}
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error


def _refers_elsewhere(value: Any) -> bool:
    """Whether there are references to the tool's schema other than to its definitions."""
    if isinstance(value, list):
        return any(map(_refers_elsewhere, cast("list[Any]", value)))
    if not isinstance(value, Mapping):
        return False
    members = cast("Mapping[str, Any]", value)
    target = members.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        parts = target.split("/", 2)
        if len(parts) < 2 or parts[1] not in _DEFINITIONS:
            return True
    return any(map(_refers_elsewhere, members.values()))


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
