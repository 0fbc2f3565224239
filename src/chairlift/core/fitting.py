"""Can a request ever be served, and how long may its output be?

Knows nothing of what is free now: model length, pool and quota are compared with the request alone.
"""

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.request import Request
from chairlift.errors import InvalidRequestError, RequestTooLongError


def limit_output(request: Request, config: SchedulerConfig, cache: CacheConfig) -> None:
    """Lower the request's output limit to what model length, pool and its tenant's quota can ever hold.

    Raises:
        RequestTooLongError: the prompt can never fit; nothing has changed.
        InvalidRequestError: the prompt is empty.
    """
    prompt, length = request.num_prompt_tokens, config.max_model_len
    if prompt == 0:
        raise InvalidRequestError("the prompt has no tokens; at least 1 is needed", param="prompt")
    num_least = 0 if request.is_pooled else 1
    if prompt + num_least > length:
        beside = "" if request.is_pooled else " and at least 1 output token is needed"
        raise RequestTooLongError(
            f"the prompt has {prompt} tokens{beside}, but a request may have {length} in all (--max-model-len)",
            param="prompt",
        )
    slots = cache.num_token_slots
    if prompt > slots:
        raise RequestTooLongError(
            f"the prompt has {prompt} tokens, but all KV pages together hold {slots} (--kv-cache-memory)",
            param="prompt",
        )
    quota = config.tenant(request.tenant).max_kv_pages
    if quota is not None:
        slots = min(slots, quota * cache.page_size)
        if prompt > slots:
            raise RequestTooLongError(
                f"the prompt has {prompt} tokens, but this tenant's KV pages hold {slots} (max_kv_pages)",
                param="prompt",
            )
    if request.is_pooled:
        request.limit_output(0)
        return
    # The last output token is never computed, so it needs no slot.
    room = min(length, slots + 1) - prompt
    wanted = request.sampling.max_tokens
    request.limit_output(room if wanted is None else min(max(wanted, 1), room))
