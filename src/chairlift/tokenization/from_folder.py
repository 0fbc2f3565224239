"""A tokenizer from a model folder in Hugging Face's layout.

Knows nothing of weights. ``tokenizer.json`` is the vocabulary and its rules; the other files say which tokens are
special, which end generation, and hold the chat template.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from chairlift.errors import ModelLoadError
from chairlift.tokenization.backend import add_tokens, surround
from chairlift.tokenization.chat_template import ChatTemplate
from chairlift.tokenization.tokenizer import DEFAULT_TEMPLATE, Tokenizer, TokenizerFacts

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def load_folder_tokenizer(folder: Path, chat_template: ChatTemplate | None = None) -> Tokenizer:
    """Build the tokenizer of a model folder; ``chat_template`` replaces the folder's own.

    Raises:
        ModelLoadError: a file is missing or cannot be understood; the message names it.
    """
    config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
    backend = _read_backend(folder / "tokenizer.json")
    named = {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name))) is not None}
    _add_missing_tokens(backend, config, named)
    if "add_bos_token" in config or "add_eos_token" in config:
        # Said explicitly, this overrides what tokenizer.json puts around a text.
        surround(
            backend,
            begin=named.get("bos_token") if config.get("add_bos_token") else None,
            end=named.get("eos_token") if config.get("add_eos_token") else None,
        )
    model_config = _read_json(folder / "config.json")
    bos_token = named.get("bos_token")
    return Tokenizer(
        backend,
        TokenizerFacts(
            bos_token_id=backend.token_to_id(bos_token) if bos_token is not None else None,
            eos_token_ids=_end_ids(folder, model_config, backend, named.get("eos_token")),
            vocab_size=_vocab_size(model_config),
            special_tokens=named,
            chat_templates={DEFAULT_TEMPLATE: chat_template} if chat_template else _chat_templates(folder, config),
        ),
    )


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        raise ModelLoadError(
            f"{path} is missing; make it once with transformers: AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER)"
        )
    try:
        return Backend.from_file(str(path))
    except Exception as error:
        # The library raises a plain Exception for whatever is wrong in the file.
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return cast("dict[str, Any]", value)


def _token_text(value: Any) -> str | None:
    """A token is written as its text or as an object with ``content``."""
    text = cast("Mapping[str, Any]", value).get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _add_missing_tokens(backend: Backend, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Add tokens that only the other files know, and make the named ones special, as transformers does."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = cast("Mapping[str, Mapping[str, Any]]", config.get("added_tokens_decoder") or {})
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        options = {name: token[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in token}
        if token["content"] not in known:
            is_special = bool(token.get("special")) or token["content"] in named.values()
            # One at a time, so that new ones get their ids in this order.
            add_tokens(backend, [AddedToken(token["content"], special=is_special, **options)])
            known.add(token["content"])
    texts = [*named.values(), *(text for key in _EXTRA_TOKENS for text in _token_texts(config.get(key)))]
    add_tokens(backend, [AddedToken(text, special=True) for text in texts if text not in known])


def _token_texts(value: Any) -> list[str]:
    values = list(cast("Mapping[str, Any]", value).values()) if isinstance(value, Mapping) else value
    texts = [_token_text(item) for item in cast("list[Any]", values)] if isinstance(values, list) else []
    return [text for text in texts if text is not None]


def _end_ids(folder: Path, model_config: Mapping[str, Any], backend: Backend, eos_token: str | None) -> frozenset[int]:
    stated = _read_json(folder / "generation_config.json").get("eos_token_id")
    if stated is None:
        stated = model_config.get("eos_token_id")
    ids = {stated} if isinstance(stated, int) else set(cast("list[int]", stated or ()))
    own = backend.token_to_id(eos_token) if eos_token is not None else None
    return frozenset(ids if own is None else ids | {own})


def _vocab_size(model_config: Mapping[str, Any]) -> int | None:
    nested = cast("Mapping[str, Any]", model_config.get("text_config") or {})
    size = model_config.get("vocab_size") or nested.get("vocab_size")
    return size if isinstance(size, int) else None


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {DEFAULT_TEMPLATE: ChatTemplate(file.read_text(encoding="utf-8"), str(file))}
    stated = config.get("chat_template")
    origin = f"chat_template in {folder / 'tokenizer_config.json'}"
    if isinstance(stated, str):
        return {DEFAULT_TEMPLATE: ChatTemplate(stated, origin)}
    if isinstance(stated, list):
        entries = cast("list[Mapping[str, str]]", stated)
        return {entry["name"]: ChatTemplate(entry["template"], origin) for entry in entries}
    return {}
