"""The parameters of a tool one by one, as tags name them: which there are, the schema of each, and how it is written.

Knows nothing of grammars, nor of how calls are read; who writes and who reads ask here, so that they agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chairlift.errors import InvalidRequestError
from chairlift.server.tools.object_variants import ObjectVariant, object_variants
from chairlift.server.tools.schema_parts import Effort, References, SchemaError, SchemaNumbers
from chairlift.server.tools.self_contained import Allowance, SelfContained
from chairlift.server.tools.value_forms import ANY_JSON, ANY_TEXT, ValueForm, form_of


@dataclass(frozen=True, slots=True)
class TaggedParameter:
    """One parameter; ``schema`` stands for itself, with all definitions that it refers to.

    ``own`` is the same schema with its reference followed, and ``form`` says how the value is written wherever it
    stands: a parameter that may be one thing or another has one form.
    """

    key: str
    schema: Any
    own: Any
    form: ValueForm
    is_required: bool


def tagged_variants(parameters: Mapping[str, Any], param: str, allowance: Allowance) -> list[list[TaggedParameter]]:
    """The parameters that a schema names, in its order, for each way in which it can be followed; those that can have
    no value are left out.

    Args:
        parameters: the schema of a tool's arguments, as a request has it.
        param: the request's field that holds it, for errors.
        allowance: what may be done and copied for the request.

    Raises:
        InvalidRequestError: it is no schema of an object whose members can be written as tags.
    """
    try:
        variants = object_variants({**parameters, "type": "object"}, allowance.effort)
    except SchemaError as error:
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
        forms = _forms(possible, followed, allowance.effort)
    except SchemaError as error:
        raise InvalidRequestError(f"{param}{error}", param=param) from None
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error
    parts = SelfContained(parameters, param, allowance)
    return [_parameters(variant, parts, followed, forms) for variant in possible]


def _parameters(
    variant: ObjectVariant, parts: SelfContained, followed: Mapping[int, Any], forms: Mapping[str, ValueForm]
) -> list[TaggedParameter]:
    required = frozenset(variant.required)
    return [
        TaggedParameter(key, parts.part(schema), followed[id(schema)], forms[key], key in required)
        for key, schema in variant.properties.items()
        if schema is not False
    ]


class ReadTools(Mapping[str, Mapping[str, ValueForm]]):
    """How the value of each parameter of each tool is written, for whoever reads; made when it is asked for.

    Args:
        schemas: the parameters of each tool: any schema, also one that is none.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._effort = Effort()
        self._known: dict[str, Mapping[str, ValueForm]] = {}

    def __getitem__(self, name: str) -> Mapping[str, ValueForm]:
        if name not in self._known:
            self._known[name] = self._forms_of(self._schemas[name])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def _forms_of(self, parameters: Any) -> Mapping[str, ValueForm]:
        if not isinstance(parameters, Mapping):
            return {}
        known = cast("Mapping[str, Any]", parameters)
        try:
            variants = object_variants({**known, "type": "object"}, self._effort)
            return _forms(variants, _followed(variants, known), self._effort)
        except (SchemaError, RecursionError):
            properties: Any = known.get("properties")
            if not isinstance(properties, Mapping):
                return {}
            return {key: form_of(schema) for key, schema in cast("Mapping[str, Any]", properties).items()}


def _followed(variants: Sequence[ObjectVariant], root: Mapping[str, Any]) -> dict[int, Any]:
    """What each schema comes to, by its identity: most stand in many variants."""
    references = References(root)
    schemas = {id(schema): schema for variant in variants for schema in variant.properties.values()}
    return {identity: references.follow(schema) for identity, schema in schemas.items()}


def _forms(variants: Sequence[ObjectVariant], followed: Mapping[int, Any], effort: Effort) -> Mapping[str, ValueForm]:
    if len(variants) == 1:
        distinct = {id(own): own for own in followed.values()}
        known = {identity: ANY_TEXT if own is False else form_of(own) for identity, own in distinct.items()}
        return {key: known[id(followed[id(schema)])] for key, schema in variants[0].properties.items()}
    found: dict[str, dict[int, Any]] = {}
    for variant in variants:
        for key, schema in variant.properties.items():
            own, schemas = followed[id(schema)], found.setdefault(key, {})
            if own is not False:
                schemas[id(own)] = own
    numbers, forms = SchemaNumbers(effort), dict[int, ValueForm]()
    for schemas in found.values():
        for identity, own in schemas.items():
            if identity not in forms:
                forms[identity] = form_of(own)
    return {key: _common_form(list(schemas.values()), numbers, forms) for key, schemas in found.items()}


def _common_form(schemas: Sequence[Any], numbers: SchemaNumbers, forms: Mapping[int, ValueForm]) -> ValueForm:
    """That of a value which may follow any of these."""
    if len(schemas) == 1 or len({numbers.number(schema) for schema in schemas}) == 1:
        return forms[id(schemas[0])]
    return ANY_JSON if any(forms[id(schema)].is_json for schema in schemas) else ANY_TEXT


def _find_impossible(variant: ObjectVariant) -> str | None:
    return next((key for key in variant.required if variant.properties.get(key) is False), None)
