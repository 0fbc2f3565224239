"""Text to token ids and back, with the model's chat template.

Knows nothing of files: loaders hand it a ready backend of the ``tokenizers`` library.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as Backend

from chairlift.errors import InvalidRequestError
from chairlift.tokenization.chat_template import ChatTemplate, Message
from chairlift.tokenization.detokenizer import IncrementalDetokenizer
from chairlift.tokenization.pieces import PieceTable
from chairlift.tokenization.template_limits import TemplateLimits

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What a model's files say beside the vocabulary.

    ``vocab_size`` is the number of ids that the model has embeddings for, where the files say it: padded models have
    more than the tokenizer. ``special_tokens`` are the texts that templates know as ``bos_token`` and the like.
    """

    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    vocab_size: int | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    chat_templates: Mapping[str, ChatTemplate] = field(default_factory=dict[str, ChatTemplate])


class Tokenizer:
    """A model's tokenizer; it holds no state of any request and may be shared by threads."""

    def __init__(self, backend: Backend, facts: TokenizerFacts) -> None:
        # A tokenizer.json may carry the truncation and padding of its training run.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._facts = facts
        self._template_limits = TemplateLimits()
        self._pieces = PieceTable(backend)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = facts.vocab_size or max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def with_template_limits(self, limits: TemplateLimits) -> "Tokenizer":
        """Return the same tokenizer with other limits for chat templates."""
        limited = copy(self)
        limited._template_limits = limits
        return limited

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the model has one."""
        return self._facts.bos_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end generation."""
        return self._facts.eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`apply_chat_template` can work."""
        return bool(self._facts.chat_templates)

    @property
    def chat_template_text(self) -> str:
        """The model's chat templates, as they are written; empty without one."""
        return "\n".join(template.source for template in self._facts.chat_templates.values())

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text; special tokens written out in it become their ids, as in Hugging Face's libraries.

        ``add_special_tokens`` adds what the model wants around a text, such as its begin token; a chat template writes
        these itself.

        Raises:
            InvalidRequestError: the text cannot be written as UTF-8, or has a token that the model lacks.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code_point = ord(text[error.start])
            raise InvalidRequestError(
                f"the text has a lone surrogate U+{code_point:04X} at character {error.start}, which is no character"
            ) from error
        # The library keeps Python's lock while it encodes one text, but not while it encodes a batch.
        ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        self.check_token_ids(ids)
        return ids

    def check_token_ids(self, ids: Iterable[int]) -> None:
        """Refuse ids that the model has no embedding for.

        Raises:
            InvalidRequestError: an id is negative or not below ``vocab_size``; the message quotes both.
        """
        vocab_size = self.vocab_size
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"token id {token_id} at position {index} is outside the vocabulary [0, {vocab_size})",
                    param="prompt",
                )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """Start the text of one choice that follows a prompt.

        With the prompt's ids, the space of a first word stays and a character that the prompt began is completed.
        """
        return IncrementalDetokenizer(self._pieces, self.special_ids if skip_special_tokens else (), prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds inside a text."""
        return self._pieces.piece(token_id)

    def token_text(self, token_id: int) -> str:
        """Return a token's text alone; U+FFFD where it holds only part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return a chat's prompt text, to be encoded with ``add_special_tokens=False``.

        Args:
            messages: the chat, each message with at least ``role`` and usually ``content``.
            add_generation_prompt: open an answer of the assistant at the end; absent, this is done unless
                ``continue_final_message`` is set.
            continue_final_message: leave the last message open instead, so that the model goes on with it.
            **variables: what else the template understands, such as ``tools``.

        Raises:
            InvalidRequestError: no template, contradicting arguments, or messages that the template refuses.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        return self._template(bool(variables.get("tools"))).render(
            messages,
            add_generation_prompt=not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={**self._facts.special_tokens, **variables},
            limits=self._template_limits,
        )

    def _template(self, with_tools: bool) -> ChatTemplate:
        templates = self._facts.chat_templates
        template = templates.get(TOOL_TEMPLATE) if with_tools else None
        template = template or templates.get(DEFAULT_TEMPLATE)
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template: use /v1/completions, or start with --chat-template FILE"
            )
        return template
