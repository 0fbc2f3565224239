"""Paged attention for decodes and prefill chunks alike, with a softmax that is updated segment by segment.

Knows nothing of requests: a work item is a run of query tokens, the page table of their request, and a key-value head.

::

    keys      0 .... first visible .............. position of the run's first token ... its last token
              |      | segment | segment | ...                                         |
              |      [ pages read, each once for all query heads and tokens of the run )

All query heads that share the key-value head, of all tokens of the run, are the rows of two small matrix products per
page: scores = queries x keys, and sums += weights x values. Tokens behind the run are never read, not even to be
multiplied by zero: their memory may hold what is not a number.
"""

import numpy as np
from numba import njit

from chairlift.execution.torch_backend.kernels_cpu.machine import (
    float32_at,
    float64_of_bits,
    int32_at,
    int64_at,
    prefetch,
    take_next,
)
from chairlift.execution.torch_backend.kernels_cpu.tiles import dot_tile, multiply_tile, narrow_shape
from chairlift.execution.torch_backend.kernels_cpu.vector_math import exp, store_row, widened

ITEM_FIELDS = 4
"""Columns of the item table: first row of the run, its number of tokens, its first position, its page table."""
_ROWS_PER_RUN = 48
_SEGMENT_TOKENS = 256
_LANES = 8
_LOWEST = np.float32(-3.0e38)


def wide_shape() -> tuple[int, int]:
    """Return the shape of tiles over 16 numbers of the head size."""
    return 2, _LANES


_dots_1x4 = dot_tile(1, 4, _LANES)
_dots_2x4 = dot_tile(2, 4, _LANES)
_dots_3x4 = dot_tile(3, 4, _LANES)
_dots_1x1 = dot_tile(1, 1, _LANES)
_sums_1 = multiply_tile(1, wide_shape)
_sums_2 = multiply_tile(2, wide_shape)
_sums_3 = multiply_tile(3, wide_shape)
_sums_4 = multiply_tile(4, wide_shape)
_sums_5 = multiply_tile(5, wide_shape)
_sums_6 = multiply_tile(6, wide_shape)
_sums_1_narrow = multiply_tile(1, narrow_shape)


def tokens_per_run(heads_per_group: int) -> int:
    """Return how many tokens of a chunk share one reading of the keys and values."""
    return max(1, _ROWS_PER_RUN // heads_per_group)


def segment_tokens(page_size: int) -> int:
    """Return how many keys are scored before their weights are used; whole pages."""
    return max(1, _SEGMENT_TOKENS // page_size) * page_size


def scratch_floats(heads_per_group: int, head_size: int, page_size: int) -> int:
    """Return how much scratch memory one thread needs, in float32 numbers."""
    rows = tokens_per_run(heads_per_group) * heads_per_group
    return rows * (2 * head_size + segment_tokens(page_size) + 2) + page_size * head_size + 64


def supports(head_size: int) -> bool:
    """Whether the tiles fit a head size."""
    return head_size % _LANES == 0


def attention_body(arguments):
    """Attention of all items of a step; see the module for what an item is."""
    own = int64_at(arguments + 16)
    num_runs, num_kv_heads = own[1], own[2]
    scratch = own[3] + 4 * own[4] * take_next(arguments + 8)
    while True:
        item = take_next(arguments)
        if item >= num_runs * num_kv_heads:
            break
        run = own[0] + 8 * ITEM_FIELDS * (item // num_kv_heads)
        _attend(run, item % num_kv_heads, arguments + 16, scratch)


@njit(error_model="numpy", fastmath=True)
def _attend(run_address, kv_head, own_address, scratch):
    run, own = int64_at(run_address), int64_at(own_address)
    first_row, num_tokens, first_position, pages = run[0], run[1], run[2], int32_at(run[3])
    num_kv_heads, q, q_stride, out, out_stride = own[2], own[5], own[6], own[7], own[8]
    group, size, page_size, kv, values_offset = own[9], own[10], own[11], own[12], own[13]
    is_half, scale, window, segment = own[14], np.float32(float64_of_bits(own[15])), own[16], own[17]
    item_bytes = 2 if is_half else 4
    page_bytes = page_size * size * item_bytes
    num_rows = num_tokens * group
    queries = scratch
    sums = queries + 4 * num_rows * size
    scores = sums + 4 * num_rows * size
    highest = float32_at(scores + 4 * num_rows * segment)
    totals = float32_at(scores + 4 * num_rows * (segment + 1))
    wide = scores + 4 * num_rows * (segment + 2)
    q_row = q + (first_row * q_stride + kv_head * group * size) * item_bytes
    for token in range(num_tokens):
        _scale_rows(
            q_row + token * q_stride * item_bytes, queries + 4 * token * group * size, group * size, is_half, scale
        )
    _clear(sums, num_rows * size)
    head_kv, page_stride = kv + kv_head * page_bytes, num_kv_heads * page_bytes
    for row in range(num_rows):
        highest[row] = _LOWEST
        totals[row] = 0.0
    end = first_position + num_tokens
    start = max(0, first_position - window + 1) // page_size * page_size if window > 0 else 0
    while start < end:
        stop = min(end, start + segment)
        for first in range(start, stop, page_size):
            count = min(page_size, stop - first)
            page = head_kv + np.int64(pages[first // page_size]) * page_stride
            # Each page is a piece of memory of its own, so only we know what is read next: keys, then the first values.
            if first + page_size < stop:
                _prefetch_all(head_kv + np.int64(pages[first // page_size + 1]) * page_stride, page_bytes)
            else:
                first_values = head_kv + np.int64(pages[start // page_size]) * page_stride + values_offset
                _prefetch_all(first_values, page_bytes)
            keys = widened(page, count * size, is_half, wide)
            _score(queries, num_rows, keys, count, size, scores + 4 * (first - start), segment)
        for row in range(num_rows):
            position = first_position + row // group
            low = max(start, position - window + 1) if window > 0 else start
            high = min(stop, position + 1)
            _weigh(
                scores + 4 * row * segment, low - start, high - start, stop - start, highest, totals, row, sums, size
            )
        for first in range(start, stop, page_size):
            count = min(page_size, stop - first)
            page = head_kv + np.int64(pages[first // page_size]) * page_stride + values_offset
            if first + page_size < stop:
                next_page = head_kv + np.int64(pages[first // page_size + 1]) * page_stride
                _prefetch_all(next_page + values_offset, page_bytes)
            values = widened(page, count * size, is_half, wide)
            _gather(scores + 4 * (first - start), segment, num_rows, values, count, size, sums)
        start = stop
    for row in range(num_rows):
        token, head = row // group, kv_head * group + row % group
        _divide(sums + 4 * row * size, size, totals[row])
        place = out + ((first_row + token) * out_stride + head * size) * item_bytes
        store_row(sums + 4 * row * size, place, size, is_half)


@njit(error_model="numpy")
def _prefetch_all(address, num_bytes):
    for offset in range(0, num_bytes, 64):
        prefetch(address + offset)


@njit(error_model="numpy", fastmath=True)
def _scale_rows(source, target, count, is_half, scale):
    values = float32_at(widened(source, count, is_half, target))
    scaled = float32_at(target)
    for i in range(count):
        scaled[i] = values[i] * scale


@njit(error_model="numpy", fastmath=True)
def _clear(target, count):
    numbers = float32_at(target)
    for i in range(count):
        numbers[i] = 0.0


@njit(error_model="numpy", fastmath=True)
def _divide(target, count, divisor):
    numbers = float32_at(target)
    factor = np.float32(1.0) / divisor
    for i in range(count):
        numbers[i] *= factor


@njit(error_model="numpy")
def _score(queries, num_rows, keys, count, size, scores, segment):
    """``scores[r, t] = queries[r] . keys[t]`` for one page."""
    vectors = size // _LANES
    quads = count // 4 * 4
    row = 0
    while row < num_rows:
        rows = min(3, num_rows - row)
        a = queries + 4 * row * size
        c = scores + 4 * row * segment
        for t in range(0, quads, 4):
            b = keys + 4 * t * size
            if rows == 3:
                _dots_3x4(a, size, b, size, c + 4 * t, segment, vectors)
            elif rows == 2:
                _dots_2x4(a, size, b, size, c + 4 * t, segment, vectors)
            else:
                _dots_1x4(a, size, b, size, c + 4 * t, segment, vectors)
        for t in range(quads, count):
            for r in range(rows):
                _dots_1x1(
                    a + 4 * r * size, size, keys + 4 * t * size, size, c + 4 * (r * segment + t), segment, vectors
                )
        row += rows


@njit(error_model="numpy", fastmath=True)
def _weigh(row_scores, low, high, count, highest, totals, row, sums, size):
    """Turn one row's scores into weights, 0 outside ``[low, high)``, and rescale what the row has summed so far."""
    weights = float32_at(row_scores)
    best = highest[row]
    for t in range(low, high):
        best = max(best, weights[t])
    shrink = exp(highest[row] - best)
    total = np.float32(0.0)
    for t in range(low, high):
        weights[t] = exp(weights[t] - best)
        total += weights[t]
    for t in range(min(low, count)):
        weights[t] = 0.0
    for t in range(max(high, 0), count):
        weights[t] = 0.0
    totals[row] = totals[row] * shrink + total
    if best > highest[row]:
        numbers = float32_at(sums + 4 * row * size)
        for i in range(size):
            numbers[i] *= shrink
    highest[row] = best


@njit(error_model="numpy")
def _gather(weights, segment, num_rows, values, count, size, sums):
    """``sums[r] += sum over t of weights[r, t] values[t]`` for one page."""
    row = 0
    while row < num_rows:
        rows = min(6, num_rows - row)
        a = weights + 4 * row * segment
        c = sums + 4 * row * size
        for j in range(0, size - _LANES, 2 * _LANES):
            b = values + 4 * j
            if rows == 6:
                _sums_6(a, segment, b, size, c + 4 * j, size, count)
            elif rows == 5:
                _sums_5(a, segment, b, size, c + 4 * j, size, count)
            elif rows == 4:
                _sums_4(a, segment, b, size, c + 4 * j, size, count)
            elif rows == 3:
                _sums_3(a, segment, b, size, c + 4 * j, size, count)
            elif rows == 2:
                _sums_2(a, segment, b, size, c + 4 * j, size, count)
            else:
                _sums_1(a, segment, b, size, c + 4 * j, size, count)
        if size % (2 * _LANES):
            j = size - _LANES
            for r in range(rows):
                _sums_1_narrow(a + 4 * r * segment, segment, values + 4 * j, size, c + 4 * (r * size + j), size, count)
        row += rows
