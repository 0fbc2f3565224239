"""``chairlift explain``: asks a server what a request waits for. Knows nothing of scheduling."""

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import click

from chairlift.cli.options import HELP_NAMES, settings_from
from chairlift.cli.server_errors import error_message
from chairlift.errors import ChairliftError, EngineUnavailableError

_TIMEOUT_S = 10.0


@click.command(context_settings=HELP_NAMES)
@click.argument("request_id", metavar="ID")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, metavar="URL", help="Where the server is.")
def explain(request_id: str, url: str) -> None:
    """Say where the live request ID stands, and why it is not further.

    ID is that of the answer, which the header X-Chairlift-Request-Id has before the answer is there, or the
    X-Request-Id that the request was sent with. The key is taken from CHAIRLIFT_ADMIN_API_KEY or CHAIRLIFT_API_KEY.
    """
    settings = settings_from({})
    details = _ask(request_id, url, settings.tenancy.admin_api_key or settings.server.api_key)
    try:
        lines = describe(details)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ChairliftError(f"what answers at {url} is no Chairlift server of this version") from None
    for line in lines:
        click.echo(line)


def describe(details: dict[str, Any]) -> list[str]:
    """Lines about a request, from the answer of /v1/requests/{id}."""
    lines = [f"request {details['id']}" + (f" ({details['label']})" if details.get("label") else "")]
    limits = [f"{name} {details[name]:g}" for name in ("ttft_deadline_ms", "deadline_ms") if details.get(name)]
    if limits:
        lines.append(f"  wanted within {', '.join(limits)}")
    for choice in details["choices"]:
        lines.append(f"  choice {choice['index']}: {choice['phase']}, {choice['reason']}")
        lines.append("    " + ", ".join(_facts(choice)))
    return lines


def _facts(choice: dict[str, Any]) -> list[str]:
    facts = [f"tier {choice['tier']}", f"tenant {choice['tenant'] or 'default'}", f"waited {choice['waited_s']:.1f} s"]
    if choice["position"] is not None:
        facts.append(f"{choice['position']} requests before it")
    if choice["num_tokens_ahead"] is not None:
        facts.append(f"{choice['num_tokens_ahead']} tokens before it")
    if choice["predicted_wait_s"] is not None:
        facts.append(f"next token in about {choice['predicted_wait_s']:.1f} s")
    num_tokens = choice["num_prompt_tokens"] + choice["num_output_tokens"]
    facts.append(f"{choice['num_computed_tokens']} of {num_tokens} tokens computed in {choice['num_kv_pages']} pages")
    if choice["num_preemptions"]:
        facts.append(f"preempted {choice['num_preemptions']} times")
    return facts


def _ask(request_id: str, url: str, key: str | None) -> dict[str, Any]:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    root = url.rstrip("/").removesuffix("/v1")
    try:
        response = httpx.get(f"{root}/v1/requests/{quote(request_id, safe='')}", headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last for names that no host can have
        raise EngineUnavailableError(f"no server answers at {root}: {error}") from None
    if response.status_code != HTTPStatus.OK:
        raise ChairliftError(error_message(response.content, response.status_code))
    try:
        return response.json()
    except ValueError:
        raise ChairliftError(f"what answers at {root} is no Chairlift server: its answer is no JSON") from None
