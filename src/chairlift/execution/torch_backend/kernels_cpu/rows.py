"""Operations on single rows: norms, rotation with the KV write, and the gated activation.

Knows nothing of layers. Each body takes blocks of rows from the shared counter; memory may hold bfloat16, sums are
float32. ``scratch`` has room for one row of float32 numbers per thread and use.
"""

import numpy as np
from numba import njit

from chairlift.execution.torch_backend.kernels_cpu.machine import float32_at, float64_of_bits, int64_at, take_next
from chairlift.execution.torch_backend.kernels_cpu.vector_math import exp, store_row, widened

ROWS_PER_ITEM = 4


def norm_body(arguments):
    """``residual += x`` if there is a residual; ``out = rms_norm(that)``."""
    own = int64_at(arguments + 16)
    x, residual, weight, out = own[0], own[1], own[2], own[3]
    num_rows, width, eps, is_half, scratch = own[4], own[5], float64_of_bits(own[6]), own[7], own[8]
    row_bytes = width * (2 if is_half else 4)
    own_scratch = scratch + 12 * width * take_next(arguments + 8)
    weights = widened(weight, width, is_half, own_scratch + 8 * width)
    while True:
        first = take_next(arguments) * ROWS_PER_ITEM
        if first >= num_rows:
            break
        for row in range(first, min(num_rows, first + ROWS_PER_ITEM)):
            values = widened(x + row * row_bytes, width, is_half, own_scratch)
            if residual != 0:
                place = residual + row * row_bytes
                _add(values, widened(place, width, is_half, own_scratch + 4 * width), own_scratch, width)
                store_row(own_scratch, place, width, is_half)
                values = widened(place, width, is_half, own_scratch)
            _normalize(values, weights, own_scratch, width, eps)
            store_row(own_scratch, out + row * row_bytes, width, is_half)


@njit(error_model="numpy", fastmath=True)
def _add(first, second, out, width):
    a, b, total = float32_at(first), float32_at(second), float32_at(out)
    for i in range(width):
        total[i] = a[i] + b[i]


@njit(error_model="numpy", fastmath=True)
def _normalize(values, weights, out, width, eps):
    x, w, y = float32_at(values), float32_at(weights), float32_at(out)
    squares = np.float32(0.0)
    for i in range(width):
        squares += x[i] * x[i]
    scale = np.float32(1.0 / np.sqrt(np.float64(squares) / width + eps))
    for i in range(width):
        y[i] = x[i] * scale * w[i]


def rotate_body(arguments):
    """Rotate queries in place; write rotated keys, and values, to the KV pages."""
    own = int64_at(arguments + 16)
    q, k, v = own[0], own[1], own[2]
    q_stride, k_stride, v_stride = own[3], own[4], own[5]
    cosines, sines, positions, kv_slots, kv = own[6], own[7], int64_at(own[8]), int64_at(own[9]), own[10]
    num_rows, num_heads, num_kv_heads, head_size, page_size = own[11], own[12], own[13], own[14], own[15]
    values_offset, is_half, scratch = own[16], own[17], own[18]
    item_bytes = 2 if is_half else 4
    head_bytes = head_size * item_bytes
    own_scratch = scratch + 8 * head_size * take_next(arguments + 8)
    while True:
        first = take_next(arguments) * ROWS_PER_ITEM
        if first >= num_rows:
            break
        for row in range(first, min(num_rows, first + ROWS_PER_ITEM)):
            angle = positions[row] * (head_size // 2) * 4
            cos, sin = cosines + angle, sines + angle
            query = q + row * q_stride * item_bytes
            for head in range(num_heads):
                place = query + head * head_bytes
                _rotate(place, place, cos, sin, head_size, is_half, own_scratch)
            page, offset = kv_slots[row] // page_size, kv_slots[row] % page_size
            for head in range(num_kv_heads):
                target = kv + ((page * num_kv_heads + head) * page_size + offset) * head_bytes
                key = k + row * k_stride * item_bytes + head * head_bytes
                _rotate(key, target, cos, sin, head_size, is_half, own_scratch)
                value = v + row * v_stride * item_bytes + head * head_bytes
                _copy(value, target + values_offset, head_size, is_half, own_scratch)


@njit(error_model="numpy", fastmath=True)
def _rotate(source, target, cosines, sines, size, is_half, scratch):
    half = size // 2
    x = float32_at(widened(source, size, is_half, scratch))
    y = float32_at(scratch + 4 * size)
    cos, sin = float32_at(cosines), float32_at(sines)
    for i in range(half):
        y[i] = x[i] * cos[i] - x[half + i] * sin[i]
        y[half + i] = x[half + i] * cos[i] + x[i] * sin[i]
    store_row(scratch + 4 * size, target, size, is_half)


@njit(error_model="numpy", fastmath=True)
def _copy(source, target, size, is_half, scratch):
    store_row(widened(source, size, is_half, scratch), target, size, is_half)


def silu_mul_body(arguments):
    """``out = silu(first half of each row) * second half``."""
    own = int64_at(arguments + 16)
    x, out, num_rows, width, is_half, scratch = own[0], own[1], own[2], own[3], own[4], own[5]
    row_bytes = width * (2 if is_half else 4)
    own_scratch = scratch + 12 * width * take_next(arguments + 8)
    while True:
        first = take_next(arguments) * ROWS_PER_ITEM
        if first >= num_rows:
            break
        for row in range(first, min(num_rows, first + ROWS_PER_ITEM)):
            gate = widened(x + 2 * row * row_bytes, width, is_half, own_scratch)
            up = widened(x + (2 * row + 1) * row_bytes, width, is_half, own_scratch + 4 * width)
            _silu_mul(gate, up, own_scratch + 8 * width, width)
            store_row(own_scratch + 8 * width, out + row * row_bytes, width, is_half)


@njit(error_model="numpy", fastmath=True)
def _silu_mul(gates, ups, out, width):
    gate, up, y = float32_at(gates), float32_at(ups), float32_at(out)
    for i in range(width):
        y[i] = gate[i] / (np.float32(1.0) + exp(-gate[i])) * up[i]
