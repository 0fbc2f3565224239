"""Small tokenizers of both kinds that are served, made without any file or training.

Knows nothing of what is tested with them.
"""

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from chairlift.tokenization.pieces import _BYTE_OF  # pyright: ignore[reportPrivateUsage]
from chairlift.tokenization.sentencepiece_merges import derive_merges
from chairlift.tokenization.tokenizer import Tokenizer, TokenizerFacts

BYTE_CHARACTERS = {byte: character for character, byte in _BYTE_OF.items()}
START, END, THINK = "<|start|>", "<|end|>", "<think>"
BYTE_MERGES = ["t h", "th e", "Ġ the", "Ġ Ġ", "Ã ©", "ð Ł", "ðŁ ĺ", "l o", "lo n", "d ."]


def byte_level_backend() -> Backend:
    """All bytes in order of value, a few merges, two special tokens and one that is added but not special."""
    texts = [BYTE_CHARACTERS[byte] for byte in range(256)]
    texts += [merge.replace(" ", "") for merge in BYTE_MERGES]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in BYTE_MERGES)]
    backend = Backend(BPE(vocab={text: index for index, text in enumerate(texts)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    backend.add_tokens([AddedToken(THINK, special=False)])
    return backend


def sentencepiece_backend(*, prefix_space: bool = True) -> Backend:
    """``<unk> <s> </s>``, all byte tokens, and some scored words."""
    words = ["▁", "▁the", "the", "th", "t", "h", "e", "▁t", "a", "é", "▁▁", "lo", "l", "o", "n", "d", ".", "中", "文"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    ids = {text: index for index, text in enumerate(texts)}
    merges = derive_merges(ids, [-float(index) for index in range(len(texts))])
    backend = Backend(BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    mark = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark]) if prefix_space else mark
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts[:3]])
    return backend


def wrap(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, TokenizerFacts())


def id_of(backend: Backend, text: str) -> int:
    token_id = backend.token_to_id(text)
    assert token_id is not None
    return token_id
