"""What the engine and the server ask of a tokenizer, and the choice between a model's own and the toy one.

Knows nothing of generation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from chairlift.config.model_source import ModelSource
from chairlift.config.sections import LimitSettings
from chairlift.engine.byte_tokenizer import ByteTokenizer


class Detokenizer(Protocol):
    """Turns the tokens of one choice into text, one at a time."""

    def push(self, token_id: int) -> str:
        """Take a token and return the text that is final now."""
        ...

    def flush(self) -> str:
        """Return what is left at the end."""
        ...


class EngineTokenizer(Protocol):
    """The surface of :class:`chairlift.tokenization.Tokenizer` that is used above it; methods are described there."""

    special_ids: frozenset[int]
    vocab_size: int

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end generation."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`apply_chat_template` can work."""
        ...

    @property
    def chat_template_text(self) -> str:
        """The model's chat templates, as they are written."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return a token's text alone."""
        ...

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> Detokenizer:
        """Start the text of one choice that follows a prompt."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return a chat's prompt text."""
        ...


def build_tokenizer(
    source: ModelSource | None, chat_template: str | None = None, limits: LimitSettings | None = None
) -> EngineTokenizer:
    """Load the tokenizer that belongs to the model; the toy one if there are no files.

    Args:
        source: the model's files.
        chat_template: a file with a chat template, instead of the model's own.
        limits: those of the server, for chat templates; the defaults if absent.

    Raises:
        ModelLoadError: the model's files hold none.
    """
    if source is None:
        return ByteTokenizer()
    # These bring libraries that the engine process does without.
    from chairlift.tokenization import load_tokenizer
    from chairlift.tokenization.template_limits import TemplateLimits

    limits = limits or LimitSettings()
    return load_tokenizer(
        source, chat_template, TemplateLimits(timeout_s=limits.template_timeout, max_chars=limits.max_prompt_chars)
    )
