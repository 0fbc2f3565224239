"""The lines of a batch: found and checked without making what they ask for, and read again one at a time.

Knows nothing of who answers them. Of a file of any size there is one line in memory, which is no longer and has no more
values than the body of a request may have.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from chairlift.server.batches.objects import BatchError
from chairlift.server.json_size import CONTAINER_WEIGHT, weigh_values

LOWEST_TIER = 2**31 - 1
"""Whatever else waits comes first; the guaranteed share of a tier sees to it that a batch ends in the end."""

MAX_ERRORS = 20
"""Wrong lines that are told; those after them are not looked at."""

_MAX_ID_CHARS = 512
_SKIPPED_BYTES = 2**16


class LineLimits(NamedTuple):
    """What a batch may consist of; each has its setting."""

    max_lines: int
    max_line_bytes: int
    max_values: int


class Line(NamedTuple):
    """A request, and where it is in the file."""

    custom_id: str
    offset: int
    num_bytes: int


class _Envelope(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOT_STREAMED = (b"false", b"null")


def find_lines(path: Path, endpoint: str, limits: LineLimits) -> list[Line] | list[BatchError]:
    """All lines of a file, or what is wrong with the first wrong ones.

    Raises:
        OSError: the file cannot be read.
    """
    lines: list[Line] = []
    errors: list[BatchError] = []
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, (offset, num_bytes, raw) in enumerate(_raw_lines(file, limits.max_line_bytes), 1):
            if num_bytes <= limits.max_line_bytes and not raw.strip():
                continue
            if len(lines) >= limits.max_lines:
                most = limits.max_lines
                message = f"more lines than --max-batch-requests {most}"
                errors.append(BatchError(message, code="too_many_lines", line=number))
                break
            found = _checked(raw, num_bytes, endpoint, limits)
            if isinstance(found, str) and found in seen:
                found = BatchError("custom_id was used before", code="duplicate_custom_id", param="custom_id")
            if isinstance(found, str):
                seen.add(found)
                lines.append(Line(found, offset, num_bytes))
                continue
            found.line = number
            errors.append(found)
            if len(errors) >= MAX_ERRORS:
                break
    if not lines and not errors:
        errors.append(BatchError("the input file is empty", code="empty_file"))
    return errors or lines


def read_request(path: Path, line: Line) -> bytes:
    """The body that a line asks to send: in the tier of batches, whatever it says, and answered in one piece.

    Raises:
        OSError: the file cannot be read any more.
    """
    with path.open("rb") as file:
        file.seek(line.offset)
        raw = file.read(line.num_bytes)
    body = _decode_envelope(raw).body
    fields = _decode_fields(body)
    tier = b"%d" % LOWEST_TIER
    if fields and "stream" not in fields and "priority" not in fields:
        return b'{"priority":%b,%b' % (tier, memoryview(body)[1:])  # one copy: it may be a long one
    fields.pop("stream", None)
    fields["priority"] = msgspec.Raw(tier)
    return msgspec.json.encode(fields)


def _raw_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Offset and length of each line, and its text, of which the end is missing if it is too long."""
    offset = 0
    while raw := file.readline(max_bytes + 2):
        num_bytes, rest = len(raw), raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(_SKIPPED_BYTES)
            num_bytes += len(rest)
        text = raw.rstrip(b"\r\n")
        yield offset, num_bytes if rest is not raw else len(text), text
        offset += num_bytes


def _checked(raw: bytes, num_bytes: int, endpoint: str, limits: LineLimits) -> str | BatchError:
    """The ``custom_id`` of a line that can be sent."""
    if num_bytes > limits.max_line_bytes:
        most = limits.max_line_bytes
        return BatchError(f"the line has {num_bytes} bytes, but --max-body-bytes is {most}", code="line_too_long")
    may_have_more = len(raw) * CONTAINER_WEIGHT > limits.max_values
    if may_have_more and (num_values := weigh_values(raw, limits.max_values)) > limits.max_values:
        return BatchError(
            f"the line has {num_values} values (an array or object counts as 8, a key as 4), but --max-body-values is "
            f"{limits.max_values}",
            code="too_many_values",
        )
    try:
        envelope = _decode_envelope(raw)
        stream = _decode_fields(envelope.body).get("stream", b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BatchError(f"no request: {error}", code="invalid_json_line")
    if envelope.method != "POST" or envelope.url != endpoint:
        return BatchError(f"must be POST {endpoint}", code="invalid_url", param="url")
    if len(envelope.custom_id) > _MAX_ID_CHARS:
        most, given = _MAX_ID_CHARS, len(envelope.custom_id)
        return BatchError(f"custom_id has {given} characters, at most {most} are possible", param="custom_id")
    if bytes(stream) not in _NOT_STREAMED:
        return BatchError("answers of a batch are not streamed", param="body.stream")
    return envelope.custom_id
