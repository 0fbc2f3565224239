"""The lines that ``chairlift generate`` reads and writes. Knows nothing of engines or files."""

from collections.abc import Mapping
from typing import Any

import msgspec

from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError


class PromptLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of input: a prompt or messages, and what shall differ from the flags. ``id`` is copied to the output."""

    id: str | int | None = None
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Sampling parameters: what the line says, else the defaults.

        Raises:
            InvalidRequestError: a value is outside its range.
        """
        said = {
            name: value
            for name in self.__struct_fields__
            if name not in {"id", "prompt", "messages"} and (value := getattr(self, name)) is not None
        }
        return SamplingParams(**{**defaults, **said})


class OutputChoice(msgspec.Struct):
    """One choice; the names are those of :class:`chairlift.CompletionOutput`."""

    index: int
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    num_output_tokens: int


class OutputLine(msgspec.Struct, omit_defaults=True):
    """One line of output: outputs, or the error of that line. ``line`` is the input's line number, from 1."""

    line: int
    id: str | int | None = None
    outputs: list[OutputChoice] | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    error: str | None = None


_decode = msgspec.json.Decoder(PromptLine).decode


def parse_line(text: bytes) -> PromptLine:
    """Read one line.

    Raises:
        InvalidRequestError: it is not JSON, a field is unknown or of the wrong type, or there is no one prompt in it.
    """
    try:
        line = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(str(error)) from None
    if (line.prompt is None) == (line.messages is None):
        raise InvalidRequestError("a line needs either prompt or messages")
    return line
