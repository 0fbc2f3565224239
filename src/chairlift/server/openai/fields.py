"""Request fields that are known but change nothing, and those that are refused because they would.

Knows nothing of the supported fields; those are in :mod:`chairlift.server.openai.requests`. The HTTP reference in the
documentation is made from these tables.
"""

import difflib
from collections.abc import Iterable, Mapping

from chairlift.errors import InvalidRequestError
from chairlift.server.errors import shorten

IGNORED: Mapping[str, str] = {
    "cache_control": "prefixes are found by content",
    "context_management": "nothing is cut from a conversation here",
    "inference_geo": "everything is computed here",
    "metadata": "kept by OpenAI with a stored answer; nothing is stored here",
    "store": "nothing is stored here",
    "safety_identifier": "names an end user; nobody is watched here",
    "prompt_cache_key": "prefixes are found by content",
    "prompt_cache_retention": "cached prefixes live as long as there is memory",
    "parallel_tool_calls": "has a meaning only with tools",
    "prediction": "a hint for speed only",
    "request_id": "the header X-Request-Id names a request",
    "session_id": "requests are placed by what they have in common",
    "spaces_between_special_tokens": "special tokens are written as they are",
}
"""Accepted in any form and without effect on the answer, with the reason."""

REFUSED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "container": (),
    "documents": ([],),
    "ec_transfer_params": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logprob_token_ids": (),
    "logits_processors": ([],),
    "logprobs": (False,),
    "mcp_servers": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "repetition_detection": (),
    "output_config": (),
    "output_format": (),
    "return_prompt_text": (False,),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "web_search_options": (),
}
"""Not supported yet. ``null`` and the values listed ask for nothing and are accepted; others are answered 400."""


def check_other_fields(fields: Mapping[str, object], supported: Iterable[str]) -> None:
    """Accept what asks for nothing among the fields that a request model does not have.

    Raises:
        InvalidRequestError: a field would change the answer but is not supported, or no API has it.
    """
    for name, value in fields.items():
        if name in IGNORED:
            continue
        if name not in REFUSED:
            shown = shorten(name)
            raise InvalidRequestError(f"unknown field '{shown}'{_suggestion(shown, supported)}", param=shown)
        if value is not None and not any(_is_same(value, harmless) for harmless in REFUSED[name]):
            raise InvalidRequestError(f"'{name}' is not supported by this server", param=name)


def _is_same(value: object, harmless: object) -> bool:
    # 0 == False in Python, but logprobs=0 asks for the sampled token's logprob and logprobs=false for nothing.
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _suggestion(name: str, supported: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*supported, *REFUSED, *IGNORED], n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
