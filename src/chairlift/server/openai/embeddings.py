"""POST /v1/embeddings: vectors of texts, by the engine that generates too. Knows nothing of output tokens."""

import base64
from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.embeddings import check_dimensions, pooling_params, shape_embedding
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import InvalidRequestError, RequestTooLongError
from chairlift.server.body import read_body
from chairlift.server.context import ServerContext, context_of
from chairlift.server.disconnect import run_while_connected
from chairlift.server.engine_port import ModelFacts
from chairlift.server.errors import blaming
from chairlift.server.openai.answering import Head, answer_whole
from chairlift.server.openai.generation import Job
from chairlift.server.openai.prompts import PreparedPrompt, check_token_ids, encode_each, prompt_list, truncate
from chairlift.server.openai.requests import Prompt, PromptFields
from chairlift.server.openai.responses import Usage, encode
from chairlift.server.openai.terms import terms_of
from chairlift.server.openapi import documented

router = APIRouter()


class EmbeddingBody(PromptFields):
    """POST /v1/embeddings."""

    input: Prompt = Field(description="Text, token ids, or a list of either; none of them empty.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers (the default), or base64 of float32 numbers in little-endian order."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Keep the first so many numbers of a vector; only with --matryoshka."
    )
    normalize: bool | None = Field(None, description="Scale vectors to length 1 (the default).")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Keep so many tokens of a text; -1 keeps as many as the model length."
    )


class EmbeddingUsage(msgspec.Struct):
    """Tokens of all texts together."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """The vector of the text at this place of the input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct):
    """Answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post("/v1/embeddings", **documented(EmbeddingBody, EmbeddingList, "Make vectors of texts"))
async def create_embedding(request: Request) -> Response:
    """Answer one vector for each text."""
    context = context_of(request)
    body = await read_body(request, EmbeddingBody)
    context.check_model(body.model)
    settings, model = context.sections.embeddings, context.engine.model_info
    check_dimensions(body.dimensions, model.embedding_size, is_matryoshka=settings.matryoshka)
    terms = terms_of(request, body)
    prompts = await run_while_connected(request.receive, _prepare(body, context))
    prompts = [truncate(prompt, body, 0, model) for prompt in prompts]
    for prompt in prompts:
        _check(prompt, model)
    job = Job(prompts, pooling_params(settings.pooling_type), terms)
    with blaming("input"):
        return await answer_whole(request, body, job, EmbeddingFormat(body))


class EmbeddingFormat:
    """Lists of vectors."""

    id_prefix = "embd-"

    def __init__(self, body: EmbeddingBody) -> None:
        self._dimensions = body.dimensions
        self._is_normalized = body.normalize is not False
        self._is_base64 = body.encoding_format == "base64"

    def whole(self, head: Head, choices: Sequence[ChoiceDelta], usage: Usage) -> EmbeddingList:
        """An answer in one piece."""
        data = [Embedding("embedding", choice.index, self._written(choice.embedding or b"")) for choice in choices]
        return EmbeddingList("list", data, head.model, EmbeddingUsage(usage.prompt_tokens, usage.total_tokens))

    def _written(self, embedding: bytes) -> list[float] | str:
        vector = shape_embedding(embedding, self._dimensions, is_normalized=self._is_normalized)
        if self._is_base64:
            return base64.b64encode(vector.tobytes()).decode("ascii")
        # Written already, one after the other, so that others have their turn between two vectors.
        return cast("list[float]", msgspec.Raw(encode(vector.tolist())))


async def _prepare(body: EmbeddingBody, context: ServerContext) -> list[PreparedPrompt]:
    """The texts as the engine takes them.

    Raises:
        InvalidRequestError: there are too many, or one is empty or too long.
    """
    inputs, most = prompt_list(body.input), context.sections.embeddings.max_embedding_inputs
    if len(inputs) > most:
        raise InvalidRequestError(
            f"the request has {len(inputs)} inputs, but --max-embedding-inputs is {most}", param="input"
        )
    if not all(inputs):
        raise InvalidRequestError("input must not be empty, and hold nothing that is", param="input")
    if isinstance(inputs[0], str):
        return await encode_each(
            context.engine.tokenizer,
            [text for text in inputs if isinstance(text, str)],
            add_special_tokens=body.add_special_tokens is not False,
            limits=context.sections.limits,
        )
    return [PreparedPrompt(token_ids, None) for token_ids in inputs if not isinstance(token_ids, str)]


def _check(prompt: PreparedPrompt, model: ModelFacts) -> None:
    if len(prompt.token_ids) > model.max_model_len:
        raise RequestTooLongError(
            f"an input has {len(prompt.token_ids)} tokens, but the model length is {model.max_model_len} tokens "
            "(--max-model-len); truncate_prompt_tokens cuts",
            param="input",
        )
    check_token_ids(prompt.token_ids, model, param="input")
