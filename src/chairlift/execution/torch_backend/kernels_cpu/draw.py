"""Drawing tokens, one row at a time: cuts without sorting, then inversion of the cumulative distribution.

Knows nothing of penalties or requests. A work item is one row of logits, so nothing a row yields depends on others.

A cut finds its threshold by radix selection. Scaled logits are at most 0, so the bits of their absolute values order
them, most likely first; three passes narrow the threshold down to a bucket of the upper, middle and lower bits::

    key = bits of |x|      | 11 bits | 10 bits | 10 bits |
"""

import numpy as np
from numba import njit

from chairlift.execution.torch_backend.kernels_cpu.machine import (
    bits_of_float32,
    float32_at,
    float32_of_bits,
    float64_at,
    int64_at,
    take_next,
)
from chairlift.execution.torch_backend.kernels_cpu.vector_math import exp

SCRATCH_EXTRA_FLOATS = 2 * 2048 + 16
"""Scratch that a thread needs beside two rows of float32 numbers: the buckets, in float64."""
_BUCKETS = 2048
_BLOCK = 64
_LOWEST_EXPONENT = np.float32(-87.0)
_STRICT = {"contract", "reassoc", "nsz"}
"""Logits may be -inf, so infinities must be minded here."""


def draw_body(arguments):
    """Draw one token per listed row; see :func:`_draw_row` for the arguments of each."""
    own = int64_at(arguments + 16)
    logits, size, rows, num_rows = own[0], own[1], int64_at(own[2]), own[3]
    best, temperature, floor = float32_at(own[4]), float32_at(own[5]), float32_at(own[6])
    top_k, top_p, uniform, token_ids = int64_at(own[7]), float32_at(own[8]), float64_at(own[9]), int64_at(own[10])
    scratch = own[11] + 4 * (2 * size + SCRATCH_EXTRA_FLOATS) * take_next(arguments + 8)
    buckets = (scratch + 63) // 64 * 64
    scaled = buckets + 8 * _BUCKETS
    weights = scaled + 4 * size
    while True:
        item = take_next(arguments)
        if item >= num_rows:
            break
        _scale(logits + 4 * size * rows[item], scaled, size, best[item], temperature[item])
        lowest = max(floor[item], _LOWEST_EXPONENT)
        if 0 < top_k[item] < size:
            _fill_ones(weights, size)
            lowest = max(lowest, _find_threshold(scaled, weights, size, np.float64(top_k[item]), buckets))
        total = _weigh(scaled, weights, size, lowest)
        if top_p[item] < np.float32(1.0):
            lowest = max(lowest, _find_threshold(scaled, weights, size, np.float64(top_p[item]) * total, buckets))
            total = _weigh(scaled, weights, size, lowest)
        token_ids[item] = _invert(weights, size, uniform[item] * total)


@njit(error_model="numpy", fastmath=_STRICT)
def _scale(logits, scaled, size, best, temperature):
    source, target = float32_at(logits), float32_at(scaled)
    for i in range(size):
        target[i] = (source[i] - best) / temperature


@njit(error_model="numpy", fastmath=_STRICT)
def _fill_ones(weights, size):
    target = float32_at(weights)
    for i in range(size):
        target[i] = np.float32(1.0)


@njit(error_model="numpy", fastmath=_STRICT)
def _weigh(scaled, weights, size, lowest):
    """Write ``exp(scaled)``, or 0 below ``lowest``; return the sum, added up in the order of :func:`_invert`."""
    source, target = float32_at(scaled), float32_at(weights)
    for i in range(size):
        weight = exp(max(source[i], _LOWEST_EXPONENT))
        target[i] = weight if source[i] >= lowest else np.float32(0.0)
    total = 0.0
    for start in range(0, size, _BLOCK):
        total += np.float64(_sum(weights + 4 * start, min(_BLOCK, size - start)))
    return total


@njit(error_model="numpy", fastmath=_STRICT)
def _sum(address, count):
    numbers = float32_at(address)
    total = np.float32(0.0)
    for i in range(count):
        total += numbers[i]
    return total


@njit(error_model="numpy")
def _find_threshold(scaled, weights, size, wanted, buckets):
    """Return the highest value such that what is not below it weighs at least ``wanted`` together."""
    keys, amounts, sums = float32_at(scaled), float32_at(weights), float64_at(buckets)
    prefix = np.int32(0)
    before = 0.0
    for shift in (20, 10, 0):
        for bucket in range(_BUCKETS):
            sums[bucket] = 0.0
        shared = np.int32(shift + (11 if shift == 20 else 10))
        mask = np.int32(_BUCKETS - 1 if shift == 20 else 1023)
        for i in range(size):
            key = bits_of_float32(abs(keys[i]))
            if shift == 20 or key >> shared == prefix:
                sums[(key >> np.int32(shift)) & mask] += np.float64(amounts[i])
        found = np.int32(0)
        reached = before
        # Sums are rounded: if the target lies a hair behind all of them, the last bucket that weighs anything is it.
        for bucket in range(mask + 1):
            if sums[bucket] > 0.0:
                found = np.int32(bucket)
                before = reached
                reached += sums[bucket]
                if reached >= wanted:
                    break
        prefix = (prefix << np.int32(11 if shift == 20 else 10)) | found
    return -float32_of_bits(prefix)


@njit(error_model="numpy", fastmath=_STRICT)
def _invert(weights, size, target):
    """Return the token where the cumulative sum passes ``target``; the last one with any weight if rounding misses."""
    numbers = float32_at(weights)
    reached = 0.0
    last = 0
    for start in range(0, size, _BLOCK):
        count = min(_BLOCK, size - start)
        block = np.float64(_sum(weights + 4 * start, count))
        if block > 0.0 and reached + block > target:
            inside = reached
            for i in range(start, start + count):
                if numbers[i] > np.float32(0.0):
                    last = i
                    inside += np.float64(numbers[i])
                    if inside > target:
                        return i
            return last
        if block > 0.0:
            last = start
        reached += block
    for i in range(last, min(size, last + _BLOCK)):
        if numbers[i] > np.float32(0.0):
            last = i
    return last
