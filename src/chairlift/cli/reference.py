"""Reference pages made from the code: ``python -m chairlift.cli.reference`` writes them, ``--check`` compares them.

Knows nothing of the settings, metrics, endpoints and commands that it lists; each comes from the one place that
defines it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import click

from chairlift.config.sections import ServerSettings
from chairlift.config.settings import SettingInfo, Settings, describe_settings

Schema = dict[str, Any]

_NOTE = "<!-- Written by `make reference` from the code; do not edit. -->"
_ARGUMENTS = {"model": "MODEL"}
"""Settings that are an argument on the command line instead of a flag."""

_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def configuration_page() -> str:
    """Every setting with its flags, variable, default and meaning, section by section."""
    intro = (
        "Every setting can be given as a flag of `chairlift serve`, as a keyword argument of `chairlift.LLM` (the name "
        "with underscores), or as an environment variable. A flag or argument wins over a variable, and a variable "
        "over the default; an unknown name is refused. Names that flags have in other engines are accepted too, and do "
        "what is said here, which is not always the same: `--gpu-memory-utilization` of vLLM and "
        "`--mem-fraction-static` of SGLang are parts of the device's whole memory, weights included, and SGLang's "
        "`--chunked-prefill-size` counts the tokens of prompts alone."
    )
    parts = ["# Configuration", _NOTE, intro]
    for field in fields(Settings):
        section = cast("type[object]", type(getattr(Settings(), field.name)))
        rows = [_setting_row(info) for info in describe_settings() if info.section == field.name]
        parts += [f"## {_title(section)}", _first_line(section)]
        parts.append(_table(("Flag and variable", "Takes", "Default", "Meaning"), rows))
    return _joined(parts)


def _setting_row(info: SettingInfo) -> tuple[str, ...]:
    flag = f"--[no-]{info.flag.removeprefix('--')}" if info.kind is bool else _ARGUMENTS.get(info.name, info.flag)
    names = "<br>".join(f"`{name}`" for name in (flag, *info.aliases, info.environment_variable))
    if info.choices:
        takes = ", ".join(f"`{choice}`" for choice in info.choices)
    else:
        takes = _KINDS[info.kind] + _range(info.bounds)
    default = "" if info.default is None else f"`{str(info.default).lower() if info.kind is bool else info.default}`"
    return names, takes, default, info.help


def _range(bounds: tuple[float | None, float | None]) -> str:
    low, high = bounds
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    return "" if low is None else f", at least {low:g}"


def metrics_page() -> str:
    """Every metric with its kind, unit, labels and meaning."""
    from chairlift.observability import metrics

    intro = (
        "`GET /metrics` answers in Prometheus' text format. A request for `n` choices counts `n` times, because each "
        "choice takes a slot of its own."
    )
    rows = [
        (f"`{m.name}`", m.kind, m.unit, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in metrics.METRICS
    ]
    return _joined(["# Metrics", _NOTE, intro, _table(("Name", "Kind", "Unit", "Labels", "Meaning"), rows)])


def http_page() -> str:
    """Every endpoint with the fields of its request, from the server's own OpenAPI document."""
    document = _openapi()
    schemas: Schema = document.get("components", {}).get("schemas", {})
    parts = ["# HTTP", _NOTE, "The same as a machine-readable document: `GET /openapi.json`; as a page: `GET /docs`."]
    bodies: dict[str, None] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(f"## `{method.upper()} {path}`")
            parts.append(operation.get("description") or operation.get("summary", ""))
            name = _body_name(operation)
            if name is not None:
                parts.append(f"Takes [{name}](#{name.lower()}).")
                bodies[name] = None
    parts += _schema_parts(bodies, schemas)
    return _joined(parts)


def coverage_page() -> str:
    """Which endpoints and fields of the APIs that clients know are served."""
    from chairlift.cli.field_tables import coverage_parts

    head, *parts = coverage_parts(_openapi())
    written = [part if isinstance(part, str) else _table(part[0], part[1:]) for part in parts]
    return _joined([str(head), _NOTE, *written])


def _openapi() -> Schema:
    from chairlift.server.app import create_app
    from chairlift.server.engine_port import Engine

    # The document describes routes, and no route runs: an engine is never asked for.
    return create_app(cast("Engine", None), ServerSettings()).openapi()


def _body_name(operation: Schema) -> str | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref")
    return None if reference is None else str(reference).rpartition("/")[2]


def _schema_parts(names: Iterable[str], schemas: Schema) -> list[str]:
    """Tables of the named schemas and of those they refer to, each once."""
    parts: list[str] = []
    pending, done = list(names), set[str]()
    while pending:
        name = pending.pop(0)
        if name in done or name not in schemas:
            continue
        done.add(name)
        properties: Schema = schemas[name].get("properties", {})
        if not properties:
            continue
        required = schemas[name].get("required", [])
        rows: list[tuple[str, ...]] = []
        for field, schema in properties.items():
            kind = _kind(schema, pending)
            default = "required" if field in required else _default(schema)
            rows.append((f"`{field}`", kind, default, schema.get("description", "")))
        parts += [f"## {name}", schemas[name].get("description", "").partition("\n\n")[0]]
        parts.append(_table(("Field", "Type", "Default", "Meaning"), rows))
    return parts


def _kind(schema: Schema, referred: list[str]) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        referred.append(name)
        return name
    for union in ("anyOf", "oneOf"):
        if union in schema:
            kinds = dict.fromkeys(_kind(option, referred) for option in schema[union])
            return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), referred)}"
    return str(schema.get("type", "anything"))


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def commands_page() -> str:
    """Every command's help text."""
    from chairlift.cli.main import cli

    parts = ["# Command line", _NOTE]
    names = cli.context_settings["help_option_names"]
    context = click.Context(
        cli, info_name="chairlift", terminal_width=100, max_content_width=100, help_option_names=names
    )
    for title, command_context in _walk(context):
        text = command_context.command.get_help(command_context)
        parts += [f"## `{title}`", f"```text\n{text}\n```"]
    return _joined(parts)


def _walk(context: click.Context) -> Iterable[tuple[str, click.Context]]:
    yield context.command_path, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                sub = click.Context(command, context, name, terminal_width=100, max_content_width=100)
                yield from _walk(sub)


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
    "http.md": http_page,
    "coverage.md": coverage_page,
    "cli.md": commands_page,
}


def _title(section: type) -> str:
    return section.__name__.removesuffix("Settings")


def _first_line(section: type) -> str:
    return (section.__doc__ or "").partition("\n")[0]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail if a page is not what the code says.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/reference"),
    show_default=True,
    help="Where the pages are.",
)
def main(check: bool, folder: Path) -> None:
    """Write the reference pages, or check that they are up to date."""
    stale: list[str] = []
    for name, page in PAGES.items():
        text, path = page(), folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path))
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        raise click.ClickException(f"not what the code says, run `make reference`: {', '.join(stale)}")
    click.echo("\n".join(stale) if stale else "reference pages are up to date")


if __name__ == "__main__":
    main()
