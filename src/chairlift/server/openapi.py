"""The OpenAPI document: request schemas from pydantic, answers from msgspec. Knows nothing of any endpoint."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from chairlift.server.errors import ErrorBody

_SCHEMAS = "#/components/schemas/"


def documented(body: type[BaseModel] | None, answer: type[msgspec.Struct], summary: str) -> dict[str, Any]:
    """Route arguments that describe an endpoint which reads its body and writes its answer itself."""
    responses = {200: _described(answer, "The answer"), "default": _described(ErrorBody, "An error")}
    arguments: dict[str, Any] = {"summary": summary, "response_class": Response, "responses": responses}
    if body is not None:
        arguments["openapi_extra"] = {"requestBody": {"required": True, "content": _json_content(body)}}
    return arguments


def install_openapi(app: FastAPI, bodies: Sequence[type[BaseModel]], answers: Sequence[type[msgspec.Struct]]) -> None:
    """Add the schemas that :func:`documented` refers to; the document is made once, when it is first asked for."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = build()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(_schemas(bodies, answers))
        return build()

    app.openapi = openapi


def _schemas(bodies: Sequence[type[BaseModel]], answers: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    _, of_bodies = models_json_schema([(body, "validation") for body in bodies], ref_template=_SCHEMAS + "{model}")
    _, of_answers = msgspec.json.schema_components([*answers, ErrorBody], ref_template=_SCHEMAS + "{name}")
    return {**of_bodies.get("$defs", {}), **of_answers}


def _described(answer: type[msgspec.Struct], description: str) -> dict[str, Any]:
    return {"description": description, "content": _json_content(answer)}


def _json_content(model: type[object]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS + model.__name__}}}
