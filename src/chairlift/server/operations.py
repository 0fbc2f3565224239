"""GET /health, /metrics, /version and /docs: for whoever runs the server. Knows nothing of OpenAI's API."""

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


class Version(msgspec.Struct):
    """Answer of /version."""

    version: str


@router.get("/health", **documented(None, Health, "Whether requests are served"))
async def health(request: Request) -> Response:
    """200 while requests are served; 503 while the engine is down or the server is shutting down."""
    engine = context_of(request).engine
    if not engine.is_healthy:
        raise EngineUnavailableError("the engine is down")
    if engine.is_draining:
        raise DrainingError("the server is shutting down")
    return Response(msgspec.json.encode(Health("ok")), media_type="application/json")


@router.get("/metrics", response_class=Response, summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format."""
    return Response(context_of(request).engine.metrics.render(), HTTPStatus.OK, media_type=CONTENT_TYPE_LATEST)


@router.get("/version", **documented(None, Version, "Version of the server"))
async def version(request: Request) -> Response:
    """Which Chairlift this is."""
    return Response(msgspec.json.encode(Version(context_of(request).version)), media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The OpenAPI document as a page; it loads nothing from elsewhere."""
    return HTMLResponse(render_docs(request.app.openapi()))
