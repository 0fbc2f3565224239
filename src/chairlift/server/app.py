"""The ASGI application: routes, error answers and what surrounds them. Knows nothing of sockets or signals."""

import time
from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import chairlift
from chairlift.config.sections import ServerSettings
from chairlift.errors import ChairliftError, ConfigurationError
from chairlift.server import operations
from chairlift.server.context import ServerContext
from chairlift.server.disconnect import ClientLeftError
from chairlift.server.engine_port import Engine
from chairlift.server.errors import (
    handle_chairlift_error,
    handle_client_left,
    handle_http_exception,
    handle_unexpected_error,
)
from chairlift.server.middleware import ApiKeyGuard, RequestLabel
from chairlift.server.openai import chat, completions, models, requests, responses, tokenize
from chairlift.server.openapi import install_openapi

_BODIES = (requests.CompletionBody, requests.ChatBody, requests.TokenizeBody, requests.DetokenizeBody)
_ANSWERS = (
    responses.Completion,
    responses.ChatCompletion,
    responses.ChatChunk,
    responses.Model,
    responses.ModelList,
    responses.Tokens,
    responses.Text,
    operations.Health,
    operations.Version,
)


def create_app(engine: Engine, settings: ServerSettings) -> FastAPI:
    """The application that serves an engine, which must be started by whoever runs this.

    Raises:
        ConfigurationError: the API key is empty, so that anybody would be let in by mistake.
    """
    app = FastAPI(
        title="Chairlift", version=chairlift.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.context = ServerContext(engine, settings, chairlift.__version__, int(time.time()))
    for module in (completions, chat, models, tokenize, operations):
        app.include_router(module.router)
    install_openapi(app, _BODIES, _ANSWERS)
    app.add_exception_handler(ChairliftError, handle_chairlift_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(ClientDisconnect, handle_client_left)
    app.add_exception_handler(ClientLeftError, handle_client_left)
    app.add_exception_handler(HTTPStatus.INTERNAL_SERVER_ERROR, handle_unexpected_error)
    if settings.api_key is not None:
        if not settings.api_key:
            raise ConfigurationError("--api-key must not be empty; leave it out to serve without a key")
        app.add_middleware(ApiKeyGuard, api_key=settings.api_key)
    app.add_middleware(RequestLabel)
    return app
