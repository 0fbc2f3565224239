"""The parameters of a tool one by one, as tags name them: which there are, the schema of each, and how it is written.

Knows nothing of grammars, nor of how calls are read; who writes and who reads ask here, so that they agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chairlift.errors import InvalidRequestError
from chairlift.server.tools.object_variants import ObjectVariant, VariantError, follow, object_variants
from chairlift.server.tools.self_contained import Allowance, SelfContained
from chairlift.server.tools.value_forms import is_json_value

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


def tagged_variants(parameters: Mapping[str, Any], param: str, allowance: Allowance) -> list[list[TaggedParameter]]:
    """The parameters that a schema names, in its order, for each way in which it can be followed; those that can have
    no value are left out.

    Args:
        parameters: the schema of a tool's arguments, as a request has it.
        param: the request's field that holds it, for errors.
        allowance: what definitions may be copied for the request.

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
        followed = _followed(possible, parameters)
        forms = _forms(possible, followed)
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error
    parts = SelfContained(parameters, param, allowance)
    return [
        [
            TaggedParameter(
                key,
                parts.part(schema),
                followed[id(schema)],
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
        variants = object_variants({**known, "type": "object"})
        return _forms(variants, _followed(variants, known))
    except (VariantError, RecursionError):
        properties: Any = known.get("properties")
        return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}


def _followed(variants: Sequence[ObjectVariant], root: Mapping[str, Any]) -> dict[int, Any]:
    """What each schema comes to, by its identity: most stand in many variants."""
    schemas = {id(schema): schema for variant in variants for schema in variant.properties.values()}
    return {identity: follow(schema, root) for identity, schema in schemas.items()}


def _forms(variants: Sequence[ObjectVariant], followed: Mapping[int, Any]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for variant in variants:
        for key, schema in variant.properties.items():
            schemas, own = found.setdefault(key, []), followed[id(schema)]
            if own is not False and own not in schemas:
                schemas.append(own)
    return {key: _common_form(schemas) for key, schemas in found.items()}


def _common_form(schemas: Sequence[Any]) -> Any:
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": list(schemas)} if any(map(is_json_value, schemas)) else _ANY_TEXT


def _find_impossible(variant: ObjectVariant) -> str | None:
    return next((key for key in variant.required if variant.properties.get(key) is False), None)
