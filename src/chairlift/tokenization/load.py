"""Chooses the loader for a model's files.

Knows nothing of what is in them.
"""

from pathlib import Path

from chairlift.config.model_source import ModelSource
from chairlift.errors import ModelLoadError
from chairlift.tokenization.chat_template import ChatTemplate
from chairlift.tokenization.from_folder import load_folder_tokenizer
from chairlift.tokenization.from_gguf import load_gguf_tokenizer
from chairlift.tokenization.template_limits import TemplateLimits
from chairlift.tokenization.tokenizer import Tokenizer


def load_tokenizer(
    source: ModelSource, chat_template_override: str | None = None, template_limits: TemplateLimits | None = None
) -> Tokenizer:
    """Load the tokenizer of a model.

    Args:
        source: the model's files.
        chat_template_override: a file with a Jinja chat template, used instead of the model's own.
        template_limits: what a chat template may use.

    Raises:
        ModelLoadError: a file is missing or cannot be understood; the message names it.
    """
    template = _read_template(Path(chat_template_override)) if chat_template_override is not None else None
    load = load_gguf_tokenizer if source.kind == "gguf" else load_folder_tokenizer
    tokenizer = load(source.path, template)
    return tokenizer if template_limits is None else tokenizer.with_template_limits(template_limits)


def _read_template(path: Path) -> ChatTemplate:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"--chat-template {path} cannot be read: {error}") from error
    return ChatTemplate(source, f"--chat-template {path}")
