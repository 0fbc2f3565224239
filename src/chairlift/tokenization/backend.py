"""Changes to a backend of the ``tokenizers`` library: further tokens, and begin and end tokens around a text.

Knows nothing of where these come from.
"""

from collections.abc import Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing


def surround(backend: Backend, *, begin: str | None, end: str | None) -> None:
    """Make the backend put these tokens around a text that is encoded with special tokens; ``None`` puts none.

    Both must be in the vocabulary. Replaces what the backend did before.
    """
    tokens = [token for token in (begin, end) if token is not None]
    template = [*([begin] if begin is not None else []), "$A", *([end] if end is not None else [])]
    backend.post_processor = TemplateProcessing(
        single=template, special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(tokens)]
    )


def add_tokens(backend: Backend, tokens: Sequence[AddedToken]) -> None:
    """Let tokens be found in a text as a whole; those of the vocabulary keep their ids, new ones are appended."""
    special = [token for token in tokens if token.special]
    plain = [token for token in tokens if not token.special]
    backend.add_special_tokens(special)  # pyright: ignore[reportUnknownMemberType]
    backend.add_tokens(plain)  # pyright: ignore[reportUnknownMemberType]
