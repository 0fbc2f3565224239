"""Names pages by their content, so that equal prefixes get equal keys in every process and on every machine.

Knows nothing of pages' numbers or of who asks.
"""

import sys
from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import cast

_DIGEST_BYTES = 32
_WORD_BYTES = 4
_RUN_PAGES = 16
_LONG_RUN_PAGES = 64
_MAX_RUNS = 4096
_MAX_LONG_RUNS = 1024


class DigestKeyer:
    """Chained BLAKE2b digests of (parent digest, token ids as little-endian 32-bit words).

    Cryptographic, because a request that could make two prefixes collide could read another tenant's answer. Salt and
    adapter go into the root, each with its length before it, so that no pair of them reads like another.

    Digests of runs of pages, short and long ones, are remembered under what they were made of, byte for byte: prompts
    that begin like others are looked up run by run instead of being hashed page by page. Each lookup compares all
    bytes, so this gives away nothing of the digests' strength.
    """

    def __init__(self) -> None:
        self._runs: dict[bytes, list[Hashable]] = {}
        self._long_runs: dict[bytes, list[Hashable]] = {}

    def root(self, salt: str | None, adapter: str | None) -> Hashable:
        """Return the digest that stands before the first page."""
        digest = blake2b(b"chairlift.kv.1", digest_size=_DIGEST_BYTES)
        for part in (salt, adapter):
            data = b"" if part is None else part.encode("utf-8", "surrogatepass")
            size = b"\xff" * 8 if part is None else len(data).to_bytes(8, "little")
            digest.update(size + data)
        return digest.digest()

    def extend(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return one digest per full page of ``token_ids``."""
        data = _as_bytes(token_ids)
        page_bytes = page_size * _WORD_BYTES
        run_bytes = _RUN_PAGES * page_bytes
        end = len(data) // page_bytes * page_bytes
        keys: list[Hashable] = []
        last = cast("bytes", parent)
        for start in range(0, end, run_bytes):
            run = data[start : min(start + run_bytes, end)]
            content = last + run
            found = self._runs.get(content)
            if found is None:
                found = _chain(last, run, page_bytes)
                if len(run) == run_bytes:
                    _remember(self._runs, content, found, _MAX_RUNS)
            keys += found
            last = cast("bytes", found[-1])
        return keys

    def recall(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return the digests of the first pages of ``token_ids`` that need no hashing: whole runs of them."""
        data = _as_bytes(token_ids)
        run_bytes = _RUN_PAGES * page_size * _WORD_BYTES
        long_bytes = _LONG_RUN_PAGES * page_size * _WORD_BYTES
        keys: list[Hashable] = []
        last, start = cast("bytes", parent), 0
        while len(data) - start >= run_bytes:
            content = last + data[start : start + long_bytes]
            found = self._long_runs.get(content)
            if found is None:
                found = self._recall_short(last, data[start : start + long_bytes], run_bytes)
                if not found:
                    break
                if len(found) == _LONG_RUN_PAGES:
                    _remember(self._long_runs, content, found, _MAX_LONG_RUNS)
            keys += found
            start += len(found) * page_size * _WORD_BYTES
            last = cast("bytes", found[-1])
        return keys

    def _recall_short(self, parent: bytes, data: bytes, run_bytes: int) -> list[Hashable]:
        keys: list[Hashable] = []
        for start in range(0, len(data) - run_bytes + 1, run_bytes):
            found = self._runs.get(parent + data[start : start + run_bytes])
            if found is None:
                break
            keys += found
            parent = cast("bytes", found[-1])
        return keys


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian words of 32 bits."""
    if isinstance(token_ids, bytearray):  # an array would take its bytes for words of four
        token_ids = list(token_ids)
    words = token_ids if isinstance(token_ids, array) and token_ids.typecode == "I" else array("I", token_ids)
    if sys.byteorder == "big":
        words = array("I", words)
        words.byteswap()
    return words.tobytes()


def _remember(runs: dict[bytes, list[Hashable]], content: bytes, keys: list[Hashable], limit: int) -> None:
    if len(runs) >= limit:
        # The oldest goes: what is asked for often comes back at once.
        del runs[next(iter(runs))]
    runs[content] = keys


def _chain(parent: bytes, data: bytes, page_bytes: int) -> list[Hashable]:
    keys: list[Hashable] = []
    for start in range(0, len(data), page_bytes):
        parent = blake2b(parent + data[start : start + page_bytes], digest_size=_DIGEST_BYTES).digest()
        keys.append(parent)
    return keys
