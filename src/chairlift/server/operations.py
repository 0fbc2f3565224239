"""GET /health, /ready, /load, /metrics, /version and /docs: for whoever runs the server.

Knows nothing of OpenAI's API.
"""

from http import HTTPStatus

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from chairlift.errors import DrainingError, EngineUnavailableError
from chairlift.server.context import context_of
from chairlift.server.docs_page import render_docs
from chairlift.server.openapi import documented

router = APIRouter()


class Health(msgspec.Struct):
    """Answer of /health."""

    status: str


class Load(msgspec.Struct):
    """Answer of /load, with vLLM's field."""

    server_load: int


class Version(msgspec.Struct):
    """Answer of /version."""

    version: str


@router.head("/health", include_in_schema=False)
@router.head("/ping", include_in_schema=False)
@router.get("/ping", include_in_schema=False)
@router.get("/health", **documented(None, Health, "Whether the server is alive"))
async def health(request: Request) -> Response:
    """200 while the engine runs, also while the server is shutting down; 503 while the engine is down.

    For whoever would start the server anew; whether to send it requests is what /ready says.
    """
    engine = context_of(request).engine
    if not engine.is_healthy:
        raise EngineUnavailableError("the engine is down")
    return _json(Health("draining" if engine.is_draining else "ok"))


@router.head("/ready", include_in_schema=False)
@router.get("/ready", **documented(None, Health, "Whether requests are served"))
async def ready(request: Request) -> Response:
    """200 while requests are served; 503 while the engine is down or the server is shutting down."""
    engine = context_of(request).engine
    if engine.is_draining:
        raise DrainingError("the server is shutting down")
    if not engine.is_healthy:
        raise EngineUnavailableError("the engine is down")
    return _json(Health("ok"))


@router.get("/load", **documented(None, Load, "How many requests are being answered"))
async def load(request: Request) -> Response:
    """Generating requests that are being answered now, waiting ones included."""
    return _json(Load(context_of(request).concurrency.num_requests))


_SAMPLES = {"description": "Samples", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/metrics", response_class=Response, responses={200: _SAMPLES}, summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format."""
    context = context_of(request)
    page = context.engine.metrics.render() + (context.http_metrics.render() if context.http_metrics else b"")
    return Response(page, HTTPStatus.OK, media_type=CONTENT_TYPE_LATEST)


@router.get("/version", **documented(None, Version, "Version of the server"))
async def version(request: Request) -> Response:
    """Which Chairlift this is."""
    return _json(Version(context_of(request).version))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The OpenAPI document as a page; it loads nothing from elsewhere."""
    return HTMLResponse(render_docs(request.app.openapi()))


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
