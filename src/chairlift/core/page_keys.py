"""Names pages by their content, so that equal prefixes get equal keys in every process and on every machine.

Knows nothing of pages' numbers or of who asks.
"""

import sys
from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import cast

_DIGEST_BYTES = 32
_RUN_PAGES = 16
_MAX_RUNS = 4096


class DigestKeyer:
    """Chained BLAKE2b digests of (parent digest, token ids as little-endian 32-bit words).

    Cryptographic, because a request that could make two prefixes collide could read another tenant's answer. Salt and
    adapter go into the root, each with its length before it, so that no pair of them reads like another.

    Digests of runs of pages are remembered under what they were made of, byte for byte: prompts that begin like others
    are looked up run by run instead of being hashed page by page. Each lookup compares all bytes, so this gives away
    nothing of the digests' strength.
    """

    def __init__(self) -> None:
        self._runs: dict[bytes, list[Hashable]] = {}

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
        if isinstance(token_ids, bytearray):  # an array would take its bytes for words of four
            token_ids = list(token_ids)
        words = token_ids if isinstance(token_ids, array) and token_ids.typecode == "I" else array("I", token_ids)
        if sys.byteorder == "big":
            words = array("I", words)
            words.byteswap()
        data = words.tobytes()
        page_bytes = page_size * words.itemsize
        run_bytes = _RUN_PAGES * page_bytes
        end = len(data) // page_bytes * page_bytes
        keys: list[Hashable] = []
        last = cast("bytes", parent)
        for start in range(0, end, run_bytes):
            run = data[start : min(start + run_bytes, end)]
            found = self._find_run(last, run, page_bytes) if len(run) == run_bytes else _chain(last, run, page_bytes)
            keys += found
            last = cast("bytes", found[-1])
        return keys

    def _find_run(self, parent: bytes, run: bytes, page_bytes: int) -> list[Hashable]:
        content = parent + run
        found = self._runs.get(content)
        if found is None:
            found = _chain(parent, run, page_bytes)
            if len(self._runs) >= _MAX_RUNS:
                # The oldest goes: what is asked for often comes back at once.
                del self._runs[next(iter(self._runs))]
            self._runs[content] = found
        return found


def _chain(parent: bytes, data: bytes, page_bytes: int) -> list[Hashable]:
    keys: list[Hashable] = []
    for start in range(0, len(data), page_bytes):
        parent = blake2b(parent + data[start : start + page_bytes], digest_size=_DIGEST_BYTES).digest()
        keys.append(parent)
    return keys
