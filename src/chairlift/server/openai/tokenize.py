"""POST /tokenize and /detokenize, with vLLM's fields. Knows nothing of generation."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from chairlift.config.sections import LimitSettings
from chairlift.errors import InvalidRequestError
from chairlift.server.body import read_body
from chairlift.server.context import context_of
from chairlift.server.disconnect import run_while_connected
from chairlift.server.engine_port import TextCodec
from chairlift.server.openai.prompts import check_token_ids, decode, decode_each, encode, prepare_conversation
from chairlift.server.openai.requests import DetokenizeBody, TokenizeBody
from chairlift.server.openai.responses import Text, Tokens
from chairlift.server.openai.responses import encode as encode_json
from chairlift.server.openapi import documented

router = APIRouter()


@router.post("/tokenize", **documented(TokenizeBody, Tokens, "Turn text or messages into token ids"))
async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of the prompt that messages become."""
    context = context_of(request)
    body = await read_body(request, TokenizeBody)
    context.check_model(body.model)
    codec = context.engine.tokenizer
    token_ids = await run_while_connected(request.receive, _token_ids(body, codec, context.sections.limits))
    texts = await decode_each(codec, token_ids) if body.return_token_strs else None
    tokens = Tokens(len(token_ids), context.engine.model_info.max_model_len, token_ids, texts)
    return Response(encode_json(tokens), media_type="application/json")


@router.post("/detokenize", **documented(DetokenizeBody, Text, "Turn token ids into text"))
async def detokenize(request: Request) -> Response:
    """Text of token ids, special tokens included."""
    context = context_of(request)
    body = await read_body(request, DetokenizeBody)
    context.check_model(body.model)
    check_token_ids(body.tokens, context.engine.model_info, param="tokens")
    text = await decode(context.engine.tokenizer, body.tokens, skip_special_tokens=False)
    return Response(encode_json(Text(text)), media_type="application/json")


async def _token_ids(body: TokenizeBody, codec: TextCodec, limits: LimitSettings) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either prompt or messages", param="prompt")
    if body.messages is not None:
        return list((await prepare_conversation(body.messages, body, codec, limits)).token_ids)
    add_special_tokens = body.add_special_tokens is not False
    return await encode(codec, body.prompt or "", add_special_tokens=add_special_tokens, limits=limits)
