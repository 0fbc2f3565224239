"""The parameters of a tool one by one, as tags name them: which there are, the schema of each, and how it is written.

Knows nothing of grammars, nor of how calls are read; who writes and who reads ask here, so that they agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chairlift.errors import InvalidRequestError
from chairlift.server.tools.object_variants import ObjectVariant, VariantError, follow, object_variants
from chairlift.server.tools.value_forms import is_json_value

_DEFINITIONS = ("$defs", "definitions")
_WHOLE = "chairlift-tool"
"""The definition that is the tool's whole schema."""

_ANY_TEXT: Mapping[str, Any] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class TaggedParameter:
    """One parameter; ``schema`` stands for itself, with all definitions that it refers to.

    ``own`` is the same schema with its reference followed, and ``form`` says how the value is written wherever it
    stands: a parameter that may be one thing or another has one form.
    """

    key: str
    schema: Any
    own: Any
    form: Any
    is_required: bool


def tagged_variants(parameters: Mapping[str, Any], param: str) -> list[list[TaggedParameter]]:
    """The parameters that a schema names, in its order, for each way in which it can be followed; those that can have
    no value are left out.

    Args:
        parameters: the schema of a tool's arguments, as a request has it.
        param: the request's field that holds it, for errors.

    Raises:
        InvalidRequestError: it is no schema of an object whose members can be written as tags.
    """
    try:
        variants = object_variants({**parameters, "type": "object"})
    except VariantError as error:
        raise InvalidRequestError(f"{param}{error}", param=param) from None
    possible = [variant for variant in variants if _find_impossible(variant) is None]
    if not possible:
        impossible = [_find_impossible(variant) or "" for variant in variants[:1]]
        reason = f".properties['{impossible[0][:100]}'] is required and can have no value" if impossible else ""
        raise InvalidRequestError(f"{param}{reason or ' can be followed by no object'}", param=param)
    for key in {key for variant in possible for key in variant.properties}:
        if ">" in key or "\n" in key or key != key.strip():
            raise InvalidRequestError(
                f"{param}.properties['{key[:100]}'] cannot be written as a tag: its name has '>', a line break, or "
                "white space around it",
                param=param,
            )
    try:
        forms = _forms(possible, parameters)
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error
    return [
        [
            TaggedParameter(
                key,
                _self_contained(schema, parameters, param),
                follow(schema, parameters),
                forms[key],
                key in variant.required,
            )
            for key, schema in variant.properties.items()
            if schema is not False
        ]
        for variant in possible
    ]


def value_schemas(parameters: Any) -> Mapping[str, Any]:
    """How the value of each parameter is written, for whoever reads; of any schema, also of one that is none."""
    if not isinstance(parameters, Mapping):
        return {}
    known = cast("Mapping[str, Any]", parameters)
    try:
        return _forms(object_variants({**known, "type": "object"}), known)
    except (VariantError, RecursionError):
        properties: Any = known.get("properties")
        return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}


def _forms(variants: Sequence[ObjectVariant], root: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for variant in variants:
        for key, schema in variant.properties.items():
            schemas, followed = found.setdefault(key, []), follow(schema, root)
            if followed is not False and followed not in schemas:
                schemas.append(followed)
    return {key: _common_form(schemas) for key, schemas in found.items()}


def _common_form(schemas: Sequence[Any]) -> Any:
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": list(schemas)} if any(map(is_json_value, schemas)) else _ANY_TEXT


def _find_impossible(variant: ObjectVariant) -> str | None:
    return next((key for key in variant.required if variant.properties.get(key) is False), None)


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
