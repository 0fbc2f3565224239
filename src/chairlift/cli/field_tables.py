"""The page that says what the HTTP API covers: every endpoint and field of the APIs that clients know.

Knows nothing of what a field does; that comes from the server's own OpenAPI document and its tables of other fields.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.server.openai.fields import IGNORED, REFUSED
from chairlift.server.openai.no_effect import NO_EFFECT

COMPUTING = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
"""Endpoints whose fields are compared."""

UNDOCUMENTED = ("/ping", "/docs", "/openapi.json")
"""Endpoints that the OpenAPI document does not describe: another name of /health, and the document itself."""

SWITCHED_ON: Mapping[str, str] = {
    "/v1/files": "--batch-dir",
    "/v1/batches": "--batch-dir",
    "GET /v1/requests": "--admin-api-key",
    "/admin/": "--admin-api-key",
    "/reset_prefix_cache": "--admin-api-key",
}
"""Endpoints that are answered 404 without a setting, by how they begin (``GET``: that one alone), and its flag."""

_NO_HEAD = "needs a classification head; not supported"

NOT_SERVED: Mapping[str, str] = {
    "/v1/audio/speech": "text only",
    "/v1/audio/transcriptions": "text only",
    "/v1/audio/translations": "text only",
    "/v1/completions/render": "`/tokenize` shows the ids of a prompt",
    "/v1/images/generations": "text only",
    "/v1/load_lora_adapter": "no adapters yet",
    "/v1/moderations": _NO_HEAD,
    "/v1/rerank": _NO_HEAD,
    "/v1/score": _NO_HEAD,
    "/v1/unload_lora_adapter": "no adapters yet",
    "/classify": _NO_HEAD,
    "/inference/v1/generate": "`/v1/completions` takes and returns token ids",
    "/is_sleeping": "no sleep mode",
    "/pooling": "`/v1/embeddings` is there for vectors of texts",
    "/sleep": "no sleep mode",
    "/wake_up": "no sleep mode",
}
"""Endpoints of OpenAI and vLLM that are answered 404, with the reason."""

_INTRO = (
    "What of OpenAI's, Anthropic's and vLLM's APIs is served. A field is *yes* (it does what it does there), *ignored* "
    "(accepted without effect, and named in the answer's header `X-Chairlift-Ignored-Fields`) or *refused* (answered "
    "400 unless it is `null` or has a value that asks for nothing). Every other name is refused with the nearest one "
    "that exists, so a misspelt field is never lost. An endpoint that is there *with* a setting is answered 404 "
    "without it. What the fields mean: [HTTP](http.md) and [answers in detail](../api.md)."
)


def coverage_parts(document: Mapping[str, Any]) -> list[str | Sequence[Sequence[str]]]:
    """The page's paragraphs, and its tables as rows of cells, the first row being the head."""
    served = [
        (f"`{method.upper()} {path}`", _served(method.upper(), path))
        for path, methods in document["paths"].items()
        for method in methods
    ]
    served += [(f"`GET {path}`", "yes") for path in UNDOCUMENTED]
    missing = [(f"`{path}`", f"no: {why}") for path, why in NOT_SERVED.items() if path not in document["paths"]]
    return [
        "# API coverage",
        _INTRO,
        "## Endpoints",
        [("Endpoint", "Served"), *served, *missing],
        "## Fields",
        [("Field", *(f"`{path}`" for path in COMPUTING), "Note"), *_field_rows(document)],
    ]


def _served(method: str, path: str) -> str:
    for begin, flag in SWITCHED_ON.items():
        if f"{method} {path}" == begin or path.startswith(begin):
            return f"with `{flag}`"
    return "yes"


def _field_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    bodies = {path: _properties(document, path) for path in COMPUTING}
    names = dict.fromkeys([*(name for body in bodies.values() for name in body), *sorted(IGNORED), *sorted(REFUSED)])
    return [(f"`{name}`", *(_treatment(name, body) for body in bodies.values()), _note(name, bodies)) for name in names]


def _properties(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = str(content["schema"]["$ref"]).rpartition("/")[2]
    properties: Mapping[str, Any] = document["components"]["schemas"][name]["properties"]
    return properties


def _treatment(name: str, body: Mapping[str, Any]) -> str:
    if name not in body:
        return "ignored" if name in IGNORED else "refused"
    if NO_EFFECT in body[name]:
        return "ignored"
    return "yes" if _only_values(body[name]) is None else "refused"


def _only_values(schema: Mapping[str, Any]) -> Sequence[object] | None:
    """The values that a field may have beside ``null``, if it is there to take these and to refuse all others."""
    options: Sequence[Mapping[str, Any]] = schema.get("anyOf", [schema])
    if not all("const" in option or option.get("type") == "null" for option in options):
        return None
    return [option["const"] for option in options if "const" in option]


def _note(name: str, bodies: Mapping[str, Mapping[str, Any]]) -> str:
    having = {path: body[name] for path, body in bodies.items() if name in body}
    notes = [f"`{path}`: {schema[NO_EFFECT]}" for path, schema in having.items() if NO_EFFECT in schema]
    if name in IGNORED:
        notes.insert(0, IGNORED[name])
    elif name in REFUSED and not having:
        notes.append(_harmless(REFUSED[name]))
    notes += [_harmless(_only_values(schema) or ()) for schema in having.values()]
    return "; ".join(filter(None, notes))


def _harmless(values: Sequence[object]) -> str:
    written = ", ".join(f"`{json.dumps(value)}`" for value in values)
    return f"{written} {'ask' if len(values) > 1 else 'asks'} for nothing" if written else ""
