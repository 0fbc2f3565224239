"""An upload: a form of which one file goes to disk as it comes. Knows nothing of what is in the file.

What is in memory is one block at a time, whatever the form says: names, other fields and their number are bounded, and
whoever is too slow, too long or over what its tenant may keep is cut off in the middle.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from chairlift.errors import InvalidRequestError
from chairlift.server.context import context_of
from chairlift.server.errors import BodyTimeoutError, BodyTooLargeError

PROGRESS_BYTES = 2**20
"""So much has to come within each ``--body-timeout``."""

FORM_BYTES = 2**16
"""What a form may have beside its file: boundaries, headers and other fields."""

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 4096
_MAX_HEADER_BYTES = 2**14
_NO_FORM = "the body is no multipart form"
_EXTENDED_NAME = re.compile(rb"(?i)\bfilename\*(?=\s*=)")
_EXTENDED = b"extended-filename"
_CHARSETS = frozenset({b"utf-8", b"iso-8859-1"})


class _Part(NamedTuple):
    """What is being read."""

    name: str
    is_file: bool


class Form:
    """Takes the blocks of a form one after the other; used in a thread, because it writes to a disk.

    Args:
        content_type: the header of the request.
        content: where the bytes of the field ``file`` go.
        max_file_bytes: how many of them there may be.

    Raises:
        InvalidRequestError: the header names no multipart form.
    """

    def __init__(self, content_type: str, content: BinaryIO, max_file_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequestError(f"{_NO_FORM}: Content-Type must be multipart/form-data with a boundary")
        self.filename: str | None = None
        self.num_file_bytes = 0
        self._content = content
        self._max_file_bytes = max_file_bytes
        self._fields: dict[str, bytearray] = {}
        self._part = _Part("", is_file=False)
        self._header_name, self._header_value, self._disposition = b"", b"", b""
        self._num_header_bytes = 0
        self._has_ended = False
        callbacks: dict[str, Callable[..., None]] = {
            "on_header_field": self._take_header_name,
            "on_header_value": self._take_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_part,
            "on_part_data": self._take_data,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # pyright: ignore[reportArgumentType]
        except FormParserError as error:
            raise InvalidRequestError(f"{_NO_FORM}: {error}") from None

    def write(self, block: bytes) -> None:
        """Take the next block.

        Raises:
            InvalidRequestError: this is no form, or it has more fields, or longer ones, than anybody needs.
            BodyTooLargeError: the file is too long.
            OSError: the disk does not take it.
        """
        try:
            self._parser.write(block)
        except FormParserError as error:
            raise InvalidRequestError(f"{_NO_FORM}: {error}") from None

    def finish(self) -> None:
        """All blocks were given.

        Raises:
            InvalidRequestError: the end is missing, or there was no file.
        """
        if not self._has_ended:
            raise InvalidRequestError(f"{_NO_FORM}: its end is missing")
        if self.filename is None:
            raise InvalidRequestError("file is missing", param="file")

    def field(self, name: str) -> str | None:
        """What a field says that is no file; ``None`` if there is no such field."""
        value = self._fields.get(name)
        return None if value is None else value.decode(errors="replace")

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_name += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _begin_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode(errors="replace")
        plain = options.get(b"filename")
        filename = _extended_filename(self._disposition) if plain is None else plain.decode(errors="replace")
        self._disposition = b""
        self._part = _Part(name, is_file=filename is not None)
        if filename is not None:
            if name != "file" or self.filename is not None:
                raise InvalidRequestError("a form has one file, in the field file", param="file")
            self.filename = filename
            return
        if len(self._fields) >= _MAX_FIELDS or name in self._fields:
            raise InvalidRequestError(f"a form has at most {_MAX_FIELDS} fields, each of them once")
        self._fields[name] = bytearray()

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.is_file:
            self.num_file_bytes += end - start
            if self.num_file_bytes > self._max_file_bytes:
                raise file_too_large(f"at least {self.num_file_bytes}", self._max_file_bytes)
            self._content.write(memoryview(data)[start:end])
            return
        value = self._fields[self._part.name]
        value += data[start:end]
        if len(value) > _MAX_FIELD_BYTES:
            raise InvalidRequestError(f"a field of a form has at most {_MAX_FIELD_BYTES} bytes")

    def _count_header(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > _MAX_HEADER_BYTES:
            raise InvalidRequestError(f"the headers of a form's fields have at most {_MAX_HEADER_BYTES} bytes")

    def _end(self) -> None:
        self._has_ended = True


async def receive(request: Request, form: Form, max_file_bytes: int, took: Callable[[int], None]) -> None:
    """Give a form all blocks of a request's body.

    Args:
        request: the request.
        form: what takes the blocks.
        max_file_bytes: as the form has it.
        took: told after each block how many bytes more the file has; what it raises ends the upload.

    Raises:
        InvalidRequestError, BodyTooLargeError: what the form raises.
        BodyTimeoutError: it comes too slowly.
        OverloadedError: the bodies of all requests together take ``--max-buffered-bytes``.
    """
    bodies = context_of(request).bodies
    num_bytes = 0
    async with aclosing(_blocks(request)) as blocks:
        async for block in blocks:
            num_bytes += len(block)
            if num_bytes > max_file_bytes + FORM_BYTES:
                raise file_too_large(f"at least {num_bytes - FORM_BYTES}", max_file_bytes)
            bodies.take(len(block))
            try:
                num_before = form.num_file_bytes
                await asyncio.to_thread(form.write, block)
            finally:
                bodies.release(len(block))
            took(form.num_file_bytes - num_before)
    form.finish()


def _extended_filename(disposition: bytes) -> str | None:
    """The name in ``filename*=UTF-8''na%C3%AFve.jsonl`` (RFC 5987), ``None`` if there is none.

    RFC 7578 wants none in a form, so the parser skips it, and a plain ``filename`` beside it wins; but some clients
    send no other one.

    Raises:
        InvalidRequestError: it is not written like that, or in a charset that nobody has to know.
    """
    if _EXTENDED_NAME.search(disposition) is None:
        return None
    _, options = parse_options_header(_EXTENDED_NAME.sub(_EXTENDED, disposition))
    written = options.get(_EXTENDED)
    if written is None:
        return None
    charset, _, rest = written.partition(b"'")
    _, mark, value = rest.partition(b"'")
    if not mark or charset.lower() not in _CHARSETS:
        raise InvalidRequestError("filename* must be written as UTF-8''NAME (RFC 5987)", param="file")
    return unquote_to_bytes(value).decode(charset.decode(), errors="replace")


def file_too_large(given: str, max_file_bytes: int) -> BodyTooLargeError:
    """A file has more bytes than it may have."""
    return BodyTooLargeError(f"the file has {given} bytes, but --max-batch-file-bytes is {max_file_bytes}")


async def _blocks(request: Request) -> AsyncGenerator[bytes, None]:
    """The body as it comes, with a time limit that starts again whenever another MiB is here."""
    loop = asyncio.get_running_loop()
    timeout_s = context_of(request).sections.connections.body_timeout
    due_s = loop.time() + timeout_s
    num_bytes, num_wanted_bytes = 0, PROGRESS_BYTES
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(due_s):
                block = await anext(stream, None)
        except TimeoutError:
            raise BodyTimeoutError(
                f"{num_bytes} bytes of the file came, and of the next {PROGRESS_BYTES} not all within {timeout_s:g} s; "
                "--body-timeout limits this"
            ) from None
        if block is None:
            return
        num_bytes += len(block)
        if num_bytes >= num_wanted_bytes:
            due_s, num_wanted_bytes = loop.time() + timeout_s, num_bytes + PROGRESS_BYTES
        yield block
