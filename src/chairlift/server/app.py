"""The ASGI application: routes, error answers and what surrounds them. Knows nothing of sockets or signals."""

import time
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

import chairlift
from chairlift.config.sections import ServerSettings
from chairlift.errors import ChairliftError
from chairlift.server import administration, live_requests, operations
from chairlift.server.access import Access
from chairlift.server.anthropic import fields as anthropic_fields
from chairlift.server.anthropic import messages as anthropic_messages
from chairlift.server.anthropic import objects as anthropic_objects
from chairlift.server.batches import api as batches_api
from chairlift.server.batches import objects as batches_objects
from chairlift.server.batches.runner import BatchRunner
from chairlift.server.batches.store import BatchStore
from chairlift.server.body_budget import BufferedBodies
from chairlift.server.concurrency import ConcurrencyCap
from chairlift.server.context import ServerContext, WebSections
from chairlift.server.disconnect import ClientLeftError
from chairlift.server.early_refusal import EarlyRefusal
from chairlift.server.engine_port import Engine
from chairlift.server.http_metrics import HttpCounting, HttpMetrics
from chairlift.server.middleware import AccessGuard, RequestLabel
from chairlift.server.openai import (
    chat,
    completions,
    embeddings,
    models,
    requests,
    response_fields,
    response_objects,
    responses,
    responses_api,
    tokenize,
)
from chairlift.server.openai.answering import IGNORED_HEADER
from chairlift.server.openapi import install_openapi
from chairlift.server.origins import OriginGuard, OriginRules
from chairlift.server.refusals import (
    handle_chairlift_error,
    handle_client_left,
    handle_http_exception,
    handle_unexpected_error,
)

_BODIES = (
    requests.CompletionBody,
    requests.ChatBody,
    embeddings.EmbeddingBody,
    response_fields.ResponseBody,
    anthropic_fields.MessagesBody,
    anthropic_fields.CountBody,
    batches_api.BatchBody,
    requests.TokenizeBody,
    requests.DetokenizeBody,
    administration.SchedulerChanges,
)
_ANSWERS = (
    responses.Completion,
    responses.ChatCompletion,
    responses.ChatChunk,
    embeddings.EmbeddingList,
    response_objects.ResponseObject,
    response_objects.ResponseEvent,
    anthropic_objects.AssistantMessage,
    anthropic_objects.TokenCount,
    anthropic_objects.MessagesEvent,
    anthropic_objects.MessagesError,
    batches_objects.FileObject,
    batches_objects.FileList,
    batches_objects.FileDeleted,
    batches_objects.Batch,
    batches_objects.BatchList,
    responses.Model,
    responses.ModelList,
    responses.Tokens,
    responses.Text,
    operations.Health,
    operations.Load,
    operations.Version,
    live_requests.RequestDetails,
    live_requests.RequestList,
    live_requests.Cancelled,
    administration.SchedulerSettingsNow,
    administration.PrefixCacheReset,
)


def create_app(
    engine: Engine, settings: ServerSettings, access: Access | None = None, sections: WebSections | None = None
) -> FastAPI:
    """The application that serves an engine, which must be started by whoever runs this.

    Args:
        engine: what generates.
        settings: the server's section.
        access: who may ask for what; whoever has ``--api-key``, if there is one, if absent.
        sections: limits and the like; the defaults if absent.

    Raises:
        ConfigurationError: a key is empty, so that anybody would be let in by mistake; or an origin is none.
    """
    app = FastAPI(
        title="Chairlift", version=chairlift.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    access = access or Access(settings)
    sections = sections or WebSections()
    bodies = BufferedBodies(sections.connections.max_buffered_bytes)
    http_metrics = HttpMetrics() if sections.observability.metrics_compat == "vllm" else None
    concurrency = ConcurrencyCap(sections.limits.max_concurrent_requests)
    app.state.context = ServerContext(
        engine, settings, chairlift.__version__, int(time.time()), access, sections, bodies, concurrency, http_metrics
    )
    app.state.batches = _batches(app, sections)
    for module in (
        completions,
        chat,
        responses_api,
        anthropic_messages,
        embeddings,
        models,
        batches_api,
        live_requests,
        tokenize,
        operations,
        administration,
    ):
        app.include_router(module.router)
    install_openapi(app, access, _BODIES, _ANSWERS)
    app.add_exception_handler(ChairliftError, handle_chairlift_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(ClientDisconnect, handle_client_left)
    app.add_exception_handler(ClientLeftError, handle_client_left)
    app.add_exception_handler(HTTPStatus.INTERNAL_SERVER_ERROR, handle_unexpected_error)
    app.add_middleware(EarlyRefusal, context=app.state.context)
    app.add_middleware(AccessGuard, access=access)
    app.add_middleware(RequestLabel)
    rules = OriginRules(settings.host, sections.connections.allowed_hosts, sections.connections.allowed_origins)
    app.add_middleware(OriginGuard, rules=rules)
    if rules.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=rules.origins,
            allow_methods=("GET", "POST", "PATCH", "DELETE"),
            allow_headers=("*",),
            expose_headers=(
                "X-Request-Id",
                "X-Chairlift-Request-Id",
                IGNORED_HEADER,
                "Retry-After",
                "X-Should-Retry",
            ),
        )
    if http_metrics is not None:
        app.add_middleware(HttpCounting, metrics=http_metrics)
    return app


def _batches(app: FastAPI, sections: WebSections) -> batches_api.Batches | None:
    settings = sections.batches
    if settings.batch_dir is None:
        return None
    store = BatchStore(Path(settings.batch_dir), settings)
    return batches_api.Batches(store, BatchRunner(app, store, settings), settings.max_batch_file_bytes)
