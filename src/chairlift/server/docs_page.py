"""The OpenAPI document as one HTML page without scripts or assets. Knows nothing of the application."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2733;background:#fff}
h2{margin-top:2.5rem;border-top:1px solid #d8dee6;padding-top:1rem;font-size:1.15rem}
.method{display:inline-block;min-width:3.5rem;color:#fff;background:#1f5f8b;border-radius:4px;padding:0 .4rem;
font-size:.8rem;text-align:center;vertical-align:middle}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e6eaef;
vertical-align:top}code{font-size:.92em}
@media(prefers-color-scheme:dark){body{color:#dfe6ee;background:#12171d}h2,td,th{border-color:#2c3540}}
"""


def render_docs(document: Mapping[str, Any]) -> str:
    """The page for an OpenAPI document: each endpoint with the fields of its request body."""
    title = escape(document["info"]["title"])
    schemas: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
    operations = "".join(
        _operation(method, path, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title} {escape(document['info']['version'])}</h1>"
        f'<p>The same as <a href="openapi.json">OpenAPI document</a>.</p>{operations}</body></html>'
    )


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = "".join(_rows(_resolve(body, schemas)))
    table = f"<table><tr><th>Field</th><th>Type</th><th>Meaning</th></tr>{fields}</table>" if fields else ""
    return (
        f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>'
        f"<p>{escape(operation.get('summary', ''))}. {escape(operation.get('description', ''))}</p>{table}"
    )


def _rows(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        star = " (required)" if name in required else ""
        kind = escape(_kind(field))
        yield f"<tr><td><code>{escape(name)}</code>{star}</td><td>{kind}</td><td>{_meaning(field)}</td></tr>"


def _meaning(field: Mapping[str, Any]) -> str:
    return escape(field.get("description", ""))


def _resolve(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schemas.get(reference.rsplit("/", 1)[-1], {}) if reference else schema


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[-1]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(_kind(option) for option in options if option.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
