"""``chairlift explain``: asks a server what a request waits for. Knows nothing of scheduling."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from chairlift.cli.options import HELP_NAMES, settings_from
from chairlift.cli.server_errors import error_message
from chairlift.errors import ChairliftError, EngineUnavailableError
from chairlift.report.text import printable

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 10.0


@click.command(context_settings=HELP_NAMES)
@click.argument("request_id", metavar="ID")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, metavar="URL", help="Where the server is.")
def explain(request_id: str, url: str) -> None:
    """Say where the live request ID stands, and why it is not further.

    ID is that of the answer, which the header X-Chairlift-Request-Id has before the answer is there. By the
    X-Request-Id that it was sent with, a request is found only if it came with a key, and only with that key.
    Keys are taken from CHAIRLIFT_ADMIN_API_KEY and CHAIRLIFT_API_KEY, and tried in this order.
    """
    settings = settings_from({})
    keys = [key for key in (settings.tenancy.admin_api_key, settings.server.api_key) if key]
    details = _ask(request_id, url, keys)
    try:
        lines = describe(details)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ChairliftError(f"what answers at {url} is no Chairlift server of this version") from None
    for line in lines:
        click.echo(printable(line))


def describe(details: dict[str, Any]) -> list[str]:
    """Lines about a request, from the answer of /v1/requests/{id}."""
    lines = [f"request {details['id']}" + (f" ({details['label']})" if details.get("label") else "")]
    limits = [f"{name} {details[name]:.15g}" for name in ("ttft_deadline_ms", "deadline_ms") if details.get(name)]
    if limits:
        lines.append(f"  wanted within {', '.join(limits)}")
    for choice in details["choices"]:
        lines.append(f"  choice {choice['index']}: {choice['reason']}")
        lines.append("    " + ", ".join(_facts(choice)))
    return lines


def _facts(choice: dict[str, Any]) -> list[str]:
    facts = [f"tier {choice['tier']}", f"tenant {choice['tenant'] or 'default'}", f"waited {choice['waited_s']:.1f} s"]
    if choice["position"] is not None:
        facts.append(f"{_count(choice['position'], 'request')} before it")
    if choice["num_tokens_ahead"] is not None:
        facts.append(f"{_count(choice['num_tokens_ahead'], 'token')} before it")
    if choice["predicted_wait_s"] is not None:
        facts.append(f"next token in about {choice['predicted_wait_s']:.1f} s")
    num_tokens = choice["num_prompt_tokens"] + choice["num_output_tokens"]
    pages = _count(choice["num_kv_pages"], "page")
    facts.append(f"{choice['num_computed_tokens']} of {_count(num_tokens, 'token')} computed in {pages}")
    if choice["num_preemptions"]:
        facts.append(f"preempted {_count(choice['num_preemptions'], 'time')}")
    return facts


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ask(request_id: str, url: str, keys: Sequence[str]) -> dict[str, Any]:
    """The server's answer; a later key is tried where the one before it finds nothing."""
    import httpx

    root = url.rstrip("/").removesuffix("/v1")
    first, *others = keys or [""]
    try:
        response = _get(root, request_id, first)
        for key in others:
            if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED):
                response = _get(root, request_id, key)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last for names that no host can have
        raise EngineUnavailableError(f"no server answers at {root}: {error}") from None
    if response.status_code != HTTPStatus.OK:
        raise ChairliftError(error_message(response.content, response.status_code))
    try:
        return response.json()
    except ValueError:
        raise ChairliftError(f"what answers at {root} is no Chairlift server: its answer is no JSON") from None


def _get(root: str, request_id: str, key: str) -> "httpx.Response":
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{root}/v1/requests/{quote(request_id, safe='')}", headers=headers, timeout=_TIMEOUT_S)
