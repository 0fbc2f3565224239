"""Names pages by their content, so that equal prefixes get equal keys in every process and on every machine.

Knows nothing of pages' numbers or of who asks.
"""

import sys
from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import cast

_DIGEST_BYTES = 32


class DigestKeyer:
    """Chained BLAKE2b digests of (parent digest, token ids as little-endian 32-bit words).

    Cryptographic, because a request that could make two prefixes collide could read another tenant's answer. Salt and
    adapter go into the root, each with its length before it, so that no pair of them reads like another.
    """

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
        # An array would take the bytes of a bytearray for words of four.
        words = array("I", list(token_ids) if isinstance(token_ids, bytearray) else token_ids)
        if sys.byteorder == "big":
            words.byteswap()
        data = words.tobytes()
        stride = page_size * words.itemsize
        keys: list[Hashable] = []
        last = cast("bytes", parent)
        for start in range(0, len(data) - stride + 1, stride):
            last = blake2b(last + data[start : start + stride], digest_size=_DIGEST_BYTES).digest()
            keys.append(last)
        return keys
