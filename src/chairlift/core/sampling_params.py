"""How the next token of a request is chosen, and when generation stops.

Knows nothing of logits or text: stop *strings* are found by whoever detokenizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from chairlift.core.grammar import Grammar
from chairlift.errors import InvalidRequestError

MAX_SEED = 2**64 - 1

Pooling: TypeAlias = Literal["last", "mean"]
"""How a prompt becomes one vector: the model's last hidden state of its last token, or the mean over all of them."""

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
"""Every character of every output is compared with every stop string, so both are bounded."""

MAX_LOGIT_BIAS = 100.0
MAX_BAD_WORDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping choices of one request, with the field names that vLLM users know.

    Args:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep this many most likely tokens; 0 (or -1) keeps all.
        min_p: drop tokens less likely than this times the most likely one; 0 keeps all.
        repetition_penalty: divides (positive) or multiplies (negative) logits of tokens already in
            prompt or output (Keskar et al., 2019); 1 is off.
        presence_penalty: subtracted once from logits of tokens already in the output.
        frequency_penalty: subtracted per occurrence in the output.
        seed: makes the request repeatable; ``None`` lets the engine draw one at arrival.
        max_tokens: output tokens at most; ``None`` means up to the model length.
        min_tokens: end tokens and stop strings are not acted upon before this many output tokens.
        stop: strings that end generation; 64 at most, of 1,024 characters at most.
        stop_token_ids: token ids that end generation, beside the model's own end tokens.
        include_stop_str_in_output: keep the stop string (or stop token's text) in the answer.
        ignore_eos: do not end at the model's end tokens.
        logit_bias: added to the logits of these token ids, from -100 to 100 each.
        allowed_token_ids: only these may be generated; end tokens too must be among them to be possible.
        bad_words: texts that must not be generated. A word is forbidden as it is written in tokens at the beginning of
            a text and after a space; the last of its tokens is ruled out where the output has the others.
        bad_token_ids: sequences of token ids that must not be generated: what ``bad_words`` become.
        logprobs: log-probabilities of each output token and of so many most likely ones; ``None`` for none at all.
            They are the model's own, before temperature, penalties, bias and masks.
        prompt_logprobs: the same for the tokens of the prompt.
        grammar: what the output must look like; the request then ends at the model's end token where the grammar is
            complete, whatever ``ignore_eos`` and ``min_tokens`` say.
        pooling: compute the prompt and answer with a vector made of it, instead of generating; all that concerns output
            then has no meaning.
        n: independent choices to generate for one prompt.
        skip_special_tokens: leave special tokens out of the text.
        detokenize: make text at all.

    Raises:
        InvalidRequestError: a value is outside its range; the message names field, limit and value.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None
    grammar: Grammar | None = None
    n: int = 1
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _as_tuple("stop", stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_whole("top_k", self.top_k, 0, 2**31 - 1)
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_whole("n", self.n, 1, 2**16)
        _check_whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.seed is not None:
            _check_whole("seed", self.seed, -(2**63), MAX_SEED)
        if self.max_tokens is not None:
            _check_whole("max_tokens", self.max_tokens, 0, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequestError(
                    f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}", param="min_tokens"
                )
        _check_stop(self.stop)
        self._check_edits()
        self._check_logprobs()
        if self.pooling is not None:
            self._check_pooling()

    def _check_edits(self) -> None:
        if self.logit_bias:
            _check_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise InvalidRequestError(
                    "allowed_token_ids must not be empty: nothing could be generated", param="allowed_token_ids"
                )
        if self.bad_words or self.bad_token_ids:
            words = (self.bad_words,) if isinstance(self.bad_words, str) else self.bad_words
            object.__setattr__(self, "bad_words", _as_tuple("bad_words", words))
            object.__setattr__(self, "bad_token_ids", tuple(tuple(word) for word in self.bad_token_ids))
            _check_bad_words(self.bad_words)

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if (number := getattr(self, name)) is not None:
                _check_whole(name, number, 0, 2**31 - 1)

    def _check_pooling(self) -> None:
        if self.pooling not in ("last", "mean"):
            raise InvalidRequestError(f"pooling must be last or mean, got {self.pooling!r}", param="pooling")
        for name, harmless in (("n", 1), ("logprobs", None), ("prompt_logprobs", None), ("grammar", None)):
            if (value := getattr(self, name)) != harmless:
                raise InvalidRequestError(f"{name}={value!r} has no meaning with pooling: nothing is said", param=name)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on which tokens came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def has_edits(self) -> bool:
        """Whether tokens are favoured or ruled out, however the model rates them."""
        return bool(self.logit_bias or self.allowed_token_ids is not None or self.bad_token_ids)


def _as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """``None`` is nothing, as in vLLM."""
    try:
        return () if values is None else tuple(values)
    except TypeError:
        raise InvalidRequestError(f"{name} must be a list, got {values!r}", param=name) from None


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int:
        raise InvalidRequestError(f"{name} must be a whole number, got {value!r}", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be in [{low}, {high}], got {_shown(value)}", param=name)


def _shown(value: float) -> str:
    # Python refuses to write out integers of more than a few thousand digits.
    return (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 256 else f"{value}"
    )


def _check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError(f"{name} must be a number, got {value!r}", param=name)
    # NaN compares false with everything, so the test asks for what is allowed, not for what is not. Python compares
    # integers of any size with floats exactly, where converting them would overflow.
    above = value > low if open_low else value >= low
    if above and value <= high:
        return
    bounds = f"{'(' if open_low else '['}{low}, {high}]"
    raise InvalidRequestError(f"{name} must be in {bounds}, got {_shown(value)}", param=name)


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"stop may have {MAX_STOP_STRINGS} strings at most, got {len(stop)}", param="stop")
    if not all(isinstance(text, str) for text in stop):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError("stop must hold strings only", param="stop")
    if not all(stop):
        raise InvalidRequestError("stop must not contain an empty string", param="stop")
    longest = max(map(len, stop), default=0)
    if longest > MAX_STOP_CHARS:
        raise InvalidRequestError(
            f"stop may have strings of {MAX_STOP_CHARS} characters at most, got one of {longest}", param="stop"
        )


def _check_bias(bias: Mapping[int, float]) -> None:
    if not isinstance(bias, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError(f"logit_bias must map token ids to numbers, got {bias!r}", param="logit_bias")
    for token_id, value in bias.items():
        _check_whole("logit_bias", token_id, 0, 2**31 - 1)
        _check_range("logit_bias", value, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


def _check_bad_words(words: tuple[str, ...]) -> None:
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequestError(
            f"bad_words may have {MAX_BAD_WORDS} words at most, got {len(words)}", param="bad_words"
        )
    for word in cast("tuple[object, ...]", words):
        if not isinstance(word, str):
            raise InvalidRequestError("bad_words must hold strings only", param="bad_words")
        if not word.strip():
            raise InvalidRequestError(
                f"bad_words must not contain a word without any character but spaces, got {word!r}", param="bad_words"
            )
        if len(word) > MAX_STOP_CHARS:
            raise InvalidRequestError(
                f"a bad word may have {MAX_STOP_CHARS} characters at most, got one of {len(word)}", param="bad_words"
            )
