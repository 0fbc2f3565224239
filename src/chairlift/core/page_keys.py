"""Names pages by their content, so that equal prefixes get equal keys in every process and on every machine.

Knows nothing of pages' numbers or of who asks.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import cast

_DIGEST_BYTES = 32
_WORD_BYTES = 4
_RUN_PAGES = 64
"""Pages of a remembered run at most."""


class _Run:
    """Pages that follow one another: the bytes that they are made of, and their digests."""

    __slots__ = ("content", "keys", "name")

    def __init__(self, name: bytes, content: bytes, keys: list[bytes]) -> None:
        self.name = name
        """The digest before them, and the bytes of the first page."""
        self.content = content
        self.keys = keys


class DigestKeyer:
    """Chained BLAKE2b digests of (parent digest, token ids as little-endian 32-bit words).

    Cryptographic, because a request that could make two prefixes collide could read another tenant's answer. Salt and
    adapter go into the root, each with its length before it, so that no pair of them reads like another.

    What was hashed is remembered in runs of pages, found by the digest before them and their first page: a prompt that
    begins like others is compared with them run by run instead of being hashed page by page. All bytes are compared, so
    this gives away nothing of the digests' strength. What is hashed next goes on in the run that ends there, so that a
    prompt that was computed in small chunks, and its answer, are not found piece by piece.

    Args:
        max_remembered_pages: pages in all runs; those that were not asked for longest are forgotten first.
    """

    def __init__(self, max_remembered_pages: int = 1 << 16) -> None:
        self._max_remembered_pages = max_remembered_pages
        self._num_remembered_pages = 0
        self._runs: OrderedDict[bytes, _Run] = OrderedDict()
        self._open: dict[bytes, _Run] = {}
        """Runs that may go on, by their last digests."""

    def root(self, salt: str | None, adapter: str | None) -> Hashable:
        """Return the digest that stands before the first page."""
        return _root(salt, adapter)

    def extend(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return one digest per full page of ``token_ids``."""
        last, data, page_bytes = cast("bytes", parent), _as_bytes(token_ids), page_size * _WORD_BYTES
        if len(data) == page_bytes and (run := self._open.pop(last, None)) is not None:
            return [self._go_on(run, data)]
        keys = self._recall(last, data, page_bytes)
        start, end = len(keys) * page_bytes, len(data) // page_bytes * page_bytes
        if start < end:
            last = keys[-1] if keys else last
            made = _chain(last, data[start:end], page_bytes)
            self._remember(last, data[start:end], made, page_bytes)
            keys += made
        return cast("list[Hashable]", keys)

    def recall(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return the digests of the first pages of ``token_ids`` that need no hashing."""
        keys = self._recall(cast("bytes", parent), _as_bytes(token_ids), page_size * _WORD_BYTES)
        return cast("list[Hashable]", keys)

    def _recall(self, last: bytes, data: bytes, page_bytes: int) -> list[bytes]:
        runs = self._runs
        keys: list[bytes] = []
        start, end = 0, len(data) - page_bytes
        while start <= end:
            name = last + data[start : start + page_bytes]
            run = runs.get(name)
            if run is None:
                break
            runs.move_to_end(name)
            if data.startswith(run.content, start):
                keys += run.keys
                start += len(run.content)
            else:
                num_equal = _count_equal_pages(run, data, start, page_bytes)
                keys += run.keys[:num_equal]
                start += num_equal * page_bytes
            last = keys[-1]
        return keys

    def _go_on(self, run: _Run, page: bytes) -> bytes:
        """Return the digest of one page after a run: what a decode that fills its page asks for."""
        key = blake2b(run.keys[-1] + page, digest_size=_DIGEST_BYTES).digest()
        run.content += page
        run.keys.append(key)
        self._num_remembered_pages += 1
        if len(run.keys) < _RUN_PAGES:
            self._open.setdefault(key, run)
        self._runs.move_to_end(run.name)
        if self._num_remembered_pages > self._max_remembered_pages:
            self._forget_oldest()
        return key

    def _remember(self, last: bytes, data: bytes, keys: list[bytes], page_bytes: int) -> None:
        """Keep what was hashed below ``last``: first in the run that ends there, then in new ones."""
        start = 0
        while start < len(keys):
            run = self._open.pop(last, None)
            if run is None:
                run = self._begin(last + data[start * page_bytes : (start + 1) * page_bytes])
            else:
                self._runs.move_to_end(run.name)
            end = start + _RUN_PAGES - len(run.keys)
            run.content += data[start * page_bytes : end * page_bytes]
            run.keys += keys[start:end]
            self._num_remembered_pages += len(keys[start:end])
            last, start = run.keys[-1], end
            if len(run.keys) < _RUN_PAGES:
                self._open.setdefault(last, run)
        self._forget_oldest()

    def _begin(self, name: bytes) -> _Run:
        """Return a new run. One of the same name may be left, if the runs before it were forgotten."""
        old = self._runs.pop(name, None)
        if old is not None:
            self._forget(old)
        run = self._runs[name] = _Run(name, b"", [])
        return run

    def _forget_oldest(self) -> None:
        while self._num_remembered_pages > self._max_remembered_pages:
            self._forget(self._runs.popitem(last=False)[1])

    def _forget(self, run: _Run) -> None:
        self._num_remembered_pages -= len(run.keys)
        self._open.pop(run.keys[-1], None)


@lru_cache(maxsize=256)
def _root(salt: str | None, adapter: str | None) -> bytes:
    digest = blake2b(b"chairlift.kv.1", digest_size=_DIGEST_BYTES)
    for part in (salt, adapter):
        data = b"" if part is None else part.encode("utf-8", "surrogatepass")
        size = b"\xff" * 8 if part is None else len(data).to_bytes(8, "little")
        digest.update(size + data)
    return digest.digest()


def _count_equal_pages(run: _Run, data: bytes, start: int, page_bytes: int) -> int:
    """Return how many of a run's first pages stand at ``start``; the first one does."""
    low, high = 1, min(len(run.keys), (len(data) - start) // page_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        if data.startswith(run.content[: middle * page_bytes], start):
            low = middle
        else:
            high = middle - 1
    return low


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian words of 32 bits."""
    if isinstance(token_ids, memoryview) and token_ids.format == "I" and sys.byteorder == "little":
        return token_ids.tobytes()
    if isinstance(token_ids, bytearray):  # an array would take its bytes for words of four
        token_ids = list(token_ids)
    words = token_ids if isinstance(token_ids, array) and token_ids.typecode == "I" else array("I", token_ids)
    if sys.byteorder == "big":
        words = array("I", words)
        words.byteswap()
    return words.tobytes()


def _chain(parent: bytes, data: bytes, page_bytes: int) -> list[bytes]:
    keys: list[bytes] = []
    for start in range(0, len(data), page_bytes):
        parent = blake2b(parent + data[start : start + page_bytes], digest_size=_DIGEST_BYTES).digest()
        keys.append(parent)
    return keys
