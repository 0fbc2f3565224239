"""Counter-based random numbers (Philox 4x32-10, Salmon et al., 2011): a pure function of key and counter.

Knows nothing of sampling. The same seed and position give the same number on every machine, in any batch and order.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NUM_ROUNDS = 10

Words = NDArray[np.uint64]
"""Each element is a 32-bit word."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Return four random words for each counter and key; all arrays have one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        first = c0 * _MULTIPLIERS[0]
        second = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one number in [0, 1), a multiple of 2**-53, for each pair of seed and position."""
    counters = positions.astype(np.uint64)
    zeros = np.zeros_like(counters)
    high, low, _, _ = philox((counters & _LOW, counters >> _HALF, zeros, zeros), (seeds & _LOW, seeds >> _HALF))
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
