"""The bytes that each token adds to a text, so that decoding is joining.

Knows nothing of streams. A decoder of the ``tokenizers`` library sees all tokens at once; here its steps are compiled
into rules that look at one token (and at whether it is the first), which makes streaming exact and constant in time.

One difference is meant: of byte tokens that are no UTF-8, the library turns a whole run into U+FFFD, one for each
byte, also its good characters; here only the bad bytes become U+FFFD, as in byte-level vocabularies.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend

from chairlift.errors import ModelLoadError

TextStep = Callable[[str, bool], str]


class PieceTable:
    """Token ids to bytes.

    ``lead`` is the character that is taken off the front of the joined text up to ``num_leading`` times.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rules = _compile(backend)
        self._pieces: dict[int, bytes] = {}
        self.lead = self._rules.lead
        self.num_leading = self._rules.num_leading

    def piece(self, token_id: int, *, is_first: bool = False) -> bytes:
        """Return what a token adds; nothing for an id without a token."""
        if is_first and self._rules.first_differs:
            return self._compute(token_id, True)
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._compute(token_id, False)
        return piece

    def _compute(self, token_id: int, is_first: bool) -> bytes:
        text = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return b"" if text is None else self._rules.piece(text, is_first)


class _Rules:
    """A decoder, step by step: text steps, then text to bytes, then what happens at the front of the whole."""

    def __init__(self) -> None:
        self.steps: list[TextStep] = []
        self.is_byte_level = False
        self.has_byte_tokens = False
        self.first_differs = False
        self.is_joined = False
        self.lead = ""
        self.num_leading = 0

    def piece(self, text: str, is_first: bool) -> bytes:
        for step in self.steps:
            text = step(text, is_first)
        if self.has_byte_tokens:
            byte = _byte_token(text)
            if byte is not None:
                return byte
        if self.is_byte_level:
            # As in the library: a token with any character outside the byte alphabet, such as an added one, is text.
            values = [_BYTE_OF.get(character) for character in text]
            if None not in values:
                return bytes(cast("list[int]", values))
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the rest for 256 and on, in order."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = [character for character in characters if ord(character) < 256]
    spare = iter(character for character in characters if ord(character) >= 256)
    taken = {ord(character): character for character in own}
    return {taken[byte] if byte in taken else next(spare): byte for byte in range(256)}


_BYTE_OF: Mapping[str, int] = _byte_alphabet()


def _byte_token(text: str) -> bytes | None:
    if len(text) != 6 or not text.startswith("<0x") or not text.endswith(">"):
        return None
    try:
        return bytes([int(text[3:5], 16)])
    except ValueError:
        return None


def _compile(backend: Backend) -> _Rules:
    rules = _Rules()
    decoder = cast("decoders.Decoder | None", backend.decoder)
    if decoder is None:
        # The library joins such tokens with spaces.
        rules.first_differs = True
        rules.steps.append(lambda text, is_first: text if is_first else f" {text}")
        return rules
    _add_step(rules, json.loads(decoder.__getstate__()))
    return rules


def _add_step(rules: _Rules, step: dict[str, Any]) -> None:
    kind = step["type"]
    if kind == "Sequence":
        for inner in step["decoders"]:
            _add_step(rules, inner)
    elif kind == "Fuse":
        rules.is_joined = True
    elif kind == "Strip" and rules.is_joined and not step["stop"] and not rules.num_leading:
        rules.lead, rules.num_leading = step["content"], step["start"]
    elif rules.is_joined or rules.has_byte_tokens:
        raise ModelLoadError(f"tokenizer.json: a decoder step {kind} after tokens were joined is not supported")
    elif kind == "ByteLevel":
        rules.is_byte_level = rules.is_joined = True
    elif kind == "ByteFallback":
        rules.has_byte_tokens = True
    elif kind == "Metaspace":
        _add_metaspace(rules, step)
    elif kind in _TOKEN_STEPS:
        rules.steps.append(_TOKEN_STEPS[kind](step))
    else:
        raise ModelLoadError(f"tokenizer.json: decoder step {kind} is not supported")


def _add_metaspace(rules: _Rules, step: dict[str, Any]) -> None:
    mark = step["replacement"]
    drops_first = step.get("prepend_scheme", "always") != "never"
    rules.first_differs = rules.first_differs or drops_first
    rules.steps.append(lambda text, is_first: text.replace(mark, "" if is_first and drops_first else " "))


def _replace_step(step: dict[str, Any]) -> TextStep:
    pattern, content = step["pattern"], step["content"]
    if "String" in pattern:
        return lambda text, _: text.replace(pattern["String"], content)
    library_step = decoders.Replace(Regex(pattern["Regex"]), content)
    return lambda text, _: library_step.decode([text])


def _strip_step(step: dict[str, Any]) -> TextStep:
    library_step = decoders.Strip(step["content"], step["start"], step["stop"])
    return lambda text, _: library_step.decode([text])


_TOKEN_STEPS: dict[str, Callable[[dict[str, Any]], TextStep]] = {"Replace": _replace_step, "Strip": _strip_step}
