"""GET /v1/models and /v1/models/{id}: the fields of OpenAI's answer and of Anthropic's. Knows nothing of generation."""

from datetime import UTC, datetime

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from chairlift.server.context import ServerContext, context_of
from chairlift.server.openai.responses import Model, ModelList, encode
from chairlift.server.openapi import documented

router = APIRouter()


@router.get("/v1/models", **documented(None, ModelList, "List the models served"))
async def list_models(request: Request) -> Response:
    """The one model that is served."""
    model = _describe(context_of(request))
    listed = ModelList("list", [model], first_id=model.id, last_id=model.id)
    return Response(encode(listed), media_type="application/json")


@router.get("/v1/models/{model:path}", **documented(None, Model, "Describe a model"))
async def show_model(request: Request, model: str) -> Response:
    """One model; names may hold slashes."""
    context = context_of(request)
    context.check_model(model)
    return Response(encode(_describe(context)), media_type="application/json")


def _describe(context: ServerContext) -> Model:
    facts = context.engine.model_info
    created_at = datetime.fromtimestamp(context.started_at_s, UTC)
    return Model(
        facts.name,
        "model",
        context.started_at_s,
        "chairlift",
        facts.max_model_len,
        display_name=facts.name,
        created_at=created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=facts.max_model_len,
        max_tokens=facts.max_model_len,
    )
