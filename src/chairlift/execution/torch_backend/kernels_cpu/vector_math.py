"""Rows of numbers: conversion between float32 and bfloat16, and an exponential that the compiler can vectorise.

Knows nothing of models. ``is_half`` says that memory holds bfloat16; arithmetic is always float32.
"""

import numpy as np
from numba import njit

from chairlift.execution.torch_backend.kernels_cpu.machine import (
    bits_of_float32,
    float32_at,
    float32_of_bits,
    uint16_at,
)

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_SMALLEST = np.float32(-87.0)
_LARGEST = np.float32(88.0)


# Reassociation would cancel the two-part ln 2, so this one function is compiled without it.
@njit(error_model="numpy", fastmath={"contract", "nnan", "ninf", "nsz"}, inline="never")
def exp(x):
    """``e ** x`` in float32 to about 1e-7, for ``-87 <= x <= 88``; beyond these it stays at the bound's value.

    ::

        x = n ln 2 + r, |r| <= ln 2 / 2;   e**x = 2**n (1 + r + r**2 p(r))
    """
    x = min(max(x, _SMALLEST), _LARGEST)
    n = np.float32(np.floor(x * _LOG2_E + np.float32(0.5)))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = float32_of_bits(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return (np.float32(1.0) + r + r * r * p) * power


@njit(error_model="numpy", fastmath=True)
def widened(address, count, is_half, scratch):
    """Return where ``count`` numbers at ``address`` lie as float32: there, or converted into ``scratch``."""
    if not is_half:
        return address
    source = uint16_at(address)
    target = float32_at(scratch)
    for i in range(count):
        target[i] = float32_of_bits(np.int32(source[i]) << np.int32(16))
    return scratch


@njit(error_model="numpy", fastmath=True)
def store_row(source, address, count, is_half):
    """Write ``count`` float32 numbers to ``address``, rounded to nearest (even) if memory holds bfloat16."""
    values = float32_at(source)
    if not is_half:
        target = float32_at(address)
        for i in range(count):
            target[i] = values[i]
        return
    halves = uint16_at(address)
    for i in range(count):
        bits = bits_of_float32(values[i])
        rounded = bits + np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))
        # What is not a number must stay so: rounding could carry it over to infinity or zero.
        if (bits & np.int32(0x7FFFFFFF)) > np.int32(0x7F800000):
            rounded = bits | np.int32(0x400000)
        halves[i] = np.uint16((rounded >> np.int32(16)) & np.int32(0xFFFF))
