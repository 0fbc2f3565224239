"""From the fields that hold an answer to a form to one part of a grammar. Knows nothing of tools or reasoning."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from chairlift.errors import InvalidRequestError
from chairlift.server.openai.structure_fields import JsonSchema, ResponseFormat, StructuredOutputs
from chairlift.structured.sources import ANY_OBJECT, Part, choice_part, json_part, lark_part, regex_part


class StructureFields(Protocol):
    """The fields, which completions and chat share; the ``guided`` ones are vLLM's older names."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: JsonSchema | str | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


def structured_part(body: StructureFields) -> tuple[Part, str] | None:
    """The form that an answer must have, and the field that says so; ``None`` for free text.

    Raises:
        InvalidRequestError: more than one form is asked for, or one that cannot be.
    """
    found = [*_from_response_format(body.response_format), *_from_structured_outputs(body), *_from_guided(body)]
    if len(found) > 1:
        fields = ", ".join(field for _, field in found)
        raise InvalidRequestError(
            f"an answer can have one form, but several are asked for: {fields}", param=found[1][1]
        )
    return found[0] if found else None


def _from_response_format(chosen: ResponseFormat | None) -> list[tuple[Part, str]]:
    if chosen is None or chosen.type == "text":
        return []
    if chosen.type == "json_object":
        return [(json_part(ANY_OBJECT), "response_format")]
    if chosen.json_schema is None:
        raise InvalidRequestError("response_format.json_schema is missing", param="response_format.json_schema")
    schema = chosen.json_schema.schema_
    return [(json_part(ANY_OBJECT if schema is None else schema), "response_format.json_schema.schema")]


def _from_structured_outputs(body: StructureFields) -> list[tuple[Part, str]]:
    chosen = body.structured_outputs
    if chosen is None:
        return []
    prefix = "structured_outputs."
    found: list[tuple[Part, str]] = []
    if chosen.json_ is not None:
        found.append((_schema_part(chosen.json_, f"{prefix}json"), f"{prefix}json"))
    if chosen.json_object:
        found.append((json_part(ANY_OBJECT), f"{prefix}json_object"))
    if chosen.regex is not None:
        found.append((regex_part(chosen.regex), f"{prefix}regex"))
    if chosen.choice is not None:
        found.append((_choices_part(chosen.choice, f"{prefix}choice"), f"{prefix}choice"))
    if chosen.grammar is not None:
        found.append((lark_part(chosen.grammar), f"{prefix}grammar"))
    if not found:
        raise InvalidRequestError(
            "structured_outputs needs one of json, json_object, regex, choice and grammar", param="structured_outputs"
        )
    return found


def _from_guided(body: StructureFields) -> list[tuple[Part, str]]:
    found: list[tuple[Part, str]] = []
    if body.guided_json is not None:
        found.append((_schema_part(body.guided_json, "guided_json"), "guided_json"))
    if body.guided_regex is not None:
        found.append((regex_part(body.guided_regex), "guided_regex"))
    if body.guided_choice is not None:
        found.append((_choices_part(body.guided_choice, "guided_choice"), "guided_choice"))
    if body.guided_grammar is not None:
        found.append((lark_part(body.guided_grammar), "guided_grammar"))
    return found


def _schema_part(schema: JsonSchema | str, param: str) -> Part:
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any] | bool)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequestError(f"{param} is no JSON schema: {error}", param=param) from None
    return json_part(schema)


def _choices_part(choices: Sequence[str], param: str) -> Part:
    if not choices or not all(choices):
        raise InvalidRequestError(f"{param} must be a list of texts, none of them empty", param=param)
    return choice_part(choices)
