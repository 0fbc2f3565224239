"""``chairlift serve``. Knows nothing of HTTP or scheduling."""

import logging

import click

from chairlift.cli.options import HELP_NAMES, model_argument, setting_options, settings_from
from chairlift.config.load import load_tenants
from chairlift.config.without_effect import settings_without_effect

logger = logging.getLogger(__name__)


@click.command(context_settings=HELP_NAMES)
@model_argument
@setting_options(
    *("model", "cache", "scheduler", "policy", "queue", "tenancy", "server", "limits", "answers", "connections"),
    *("observability", "embeddings", "batches"),
    without=("model",),
)
def serve(model: str | None, **flags: object) -> int:
    """Serve MODEL: a Hugging Face folder, a GGUF file or a hub id; the embedded SmolLM2-135M-Instruct if absent.

    Every flag can also be set in the environment, as CHAIRLIFT_MAX_NUM_SEQS for --max-num-seqs. SIGTERM or Ctrl-C
    takes no new requests and lets running ones end; a second one stops at once.
    """
    settings = settings_from({"model": model, **flags})
    tenants = load_tenants(settings.tenancy.tenants)

    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.observability.logging import configure_logging
    from chairlift.server.access import Access
    from chairlift.server.context import WebSections
    from chairlift.server.runner import run_server

    configure_logging(settings.server.log_level, log_format=settings.observability.log_format)
    for line in settings_without_effect(settings, tenants):
        logger.warning("%s", line)
    access = Access(settings.server, settings.tenancy, tenants)
    sections = WebSections(
        limits=settings.limits,
        answers=settings.answers,
        batches=settings.batches,
        connections=settings.connections,
        embeddings=settings.embeddings,
        observability=settings.observability,
    )
    return run_server(lambda: AsyncEngine(settings, tenants.table), settings.server, access, click.echo, sections)
