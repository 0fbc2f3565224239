"""The OpenAPI document: request schemas from pydantic, answers from msgspec, and whose key each path asks for.

Knows nothing of any endpoint.
"""

import inspect
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from chairlift.server.access import Access
from chairlift.server.errors import ErrorBody
from chairlift.server.middleware import asked_for

_SCHEMAS = "#/components/schemas/"

_KEY, _KEY_HEADER = "key", "keyHeader"
_ADMIN_KEY, _ADMIN_KEY_HEADER = "adminKey", "adminKeyHeader"
"""Names of the ways to send a key; a header of Anthropic's clients does for either."""


def documented(
    body: type[BaseModel] | None,
    answer: type[msgspec.Struct],
    summary: str,
    *,
    error: type[msgspec.Struct] = ErrorBody,
    events: type[msgspec.Struct] | None = None,
    query: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Route arguments that describe an endpoint which reads its body and writes its answer itself.

    Args:
        body: of the request, if it has one.
        answer: in one piece.
        summary: what the endpoint does.
        error: the answer to what is refused.
        events: what the data of each event is, if the answer may come as server-sent events too.
        query: its parameters in the address, as :func:`query_parameter` describes them.
    """
    responses: dict[int | str, Any] = {
        200: _described(answer, "The answer"),
        "default": _described(error, "An error"),
    }
    if events is not None:
        responses[200]["content"]["text/event-stream"] = {"schema": _event(events, error)}
    arguments: dict[str, Any] = {"summary": summary, "response_class": Response, "responses": responses}
    extra: dict[str, Any] = {"parameters": list(query)} if query else {}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": _json_content(body)}
    return {**arguments, "openapi_extra": extra}


def query_parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """A parameter of an address: ``?name=``; ``schema`` is what it may be."""
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def install_openapi(
    app: FastAPI, access: Access, bodies: Sequence[type[BaseModel]], answers: Sequence[type[msgspec.Struct]]
) -> None:
    """Add the schemas that :func:`documented` refers to, and the keys that are asked for.

    The document is made once, when it is first asked for.
    """
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = build()
            components = document.setdefault("components", {})
            components["schemas"] = _schemas(bodies, answers)
            if schemes := _security_schemes(access):
                components["securitySchemes"] = schemes
            for path, operations in document["paths"].items():
                security = _security(path, access)
                for operation in operations.values():
                    if security:
                        operation["security"] = security
                    # The framework checks nothing here, so its answer to what it would refuse is never given.
                    operation["responses"].pop("422", None)
                    operation["responses"].setdefault("default", _described(ErrorBody, "An error"))
        return build()

    app.openapi = openapi


def _security_schemes(access: Access) -> dict[str, Any]:
    schemes: dict[str, Any] = {}
    for names, is_asked, whose in (
        ((_KEY, _KEY_HEADER), access.needs_key, "a client"),
        ((_ADMIN_KEY, _ADMIN_KEY_HEADER), access.has_admin, "the administrator"),
    ):
        if is_asked:
            bearer, header = names
            schemes[bearer] = {"type": "http", "scheme": "bearer", "description": f"The key of {whose}."}
            schemes[header] = {
                "type": "apiKey",
                "in": "header",
                "name": "x-api-key",
                "description": "The same key, where there is no Authorization.",
            }
    return schemes


def _security(path: str, access: Access) -> list[dict[str, list[str]]]:
    """The ways to be let in, any of which will do; none where no key is asked for."""
    asked = asked_for(path)
    names: list[str] = []
    if access.needs_key and asked in ("client", "client or administrator"):
        names += [_KEY, _KEY_HEADER]
    if access.has_admin and asked in ("administrator", "client or administrator"):
        names += [_ADMIN_KEY, _ADMIN_KEY_HEADER]
    may_have_none = asked == "client or administrator" and not access.needs_key and names
    return [*([{}] if may_have_none else []), *({name: []} for name in names)]


def _schemas(bodies: Sequence[type[BaseModel]], answers: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    _, of_bodies = models_json_schema([(body, "validation") for body in bodies], ref_template=_SCHEMAS + "{model}")
    of_answers: dict[str, Any] = {}
    for answer in (*answers, ErrorBody):
        _add_schema(answer, of_answers)
    return {**of_bodies.get("$defs", {}), **of_answers}


def _add_schema(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of the structs in it are added to the components.

    msgspec describes what it could also read, and so no unions of structs that have no tag; they are taken apart here.
    """
    try:
        (schema,), found = msgspec.json.schema_components([kind], ref_template=_SCHEMAS + "{name}")
    except TypeError:
        pass
    else:
        components.update(found)
        return schema
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not msgspec.UnsetType]
        return {"anyOf": [_add_schema(member, components) for member in members]}
    if get_origin(kind) is list:
        return {"type": "array", "items": _add_schema(get_args(kind)[0], components)}
    fields = msgspec.structs.fields(kind)
    components[kind.__name__] = {"title": kind.__name__, "type": "object", "description": inspect.getdoc(kind)}
    components[kind.__name__] |= {
        "properties": {field.encode_name: _add_schema(field.type, components) for field in fields},
        "required": [field.encode_name for field in fields if field.required],
    }
    return {"$ref": _SCHEMAS + kind.__name__}


def _described(answer: type[msgspec.Struct], description: str) -> dict[str, Any]:
    return {"description": description, "content": _json_content(answer)}


def _event(data: type[msgspec.Struct], error: type[msgspec.Struct]) -> dict[str, Any]:
    """One event of a stream: its data is JSON, or says that there will be no more."""
    written = {"anyOf": [{"$ref": _SCHEMAS + kind.__name__} for kind in (data, error)]}
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": written}
    properties = {"event": {"type": "string"}, "data": {"anyOf": [{"const": "[DONE]"}, text]}}
    return {"type": "object", "properties": properties, "required": ["data"]}


def _json_content(model: type[object]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS + model.__name__}}}
