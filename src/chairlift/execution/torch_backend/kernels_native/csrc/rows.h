// Operations on single rows: embedding, norm, rotation with the KV write, gated activation, rounding to whole numbers.
//
// Knows nothing of layers. An item is one block of rows; all memory but KV pages and stored tables is float32.
#pragma once

#include <cmath>

#include "linear.h"

namespace CHAIRLIFT_ISA {

constexpr int64_t ROWS_PER_ITEM = 4;

template <typename RowBody>
inline void each_row(int64_t item, int64_t num_rows, RowBody body) {
  const int64_t first = item * ROWS_PER_ITEM;
  for (int64_t row = first; row < num_rows && row < first + ROWS_PER_ITEM; row++) body(row);
}

struct RoundArguments {
  const float* x;
  int64_t x_stride, num_rows, depth, num_bits;  // 8 or 16
  void* rounded;                                // int8 or int16 [T, K]
  float* scales;                                // [K / 32, T]
  float* sums;                                  // [K / 32, T]
};

// 0, or not a number if one of x is infinite or none.
inline float not_finite(const float* x, int64_t count) {
  vf nothing = vf{};
  for (int64_t i = 0; i < count; i += W) nothing += load(x + i) * 0.0f;
  return sum(nothing);
}

// Whole numbers of one block: the largest number becomes 127 (or 32,767).
template <typename Whole>
inline void round_block(const float* x, Whole* rounded, float* scale, float* total, float largest) {
  vf peak = vf{}, whole_sum = vf{};
  for (int i = 0; i < BLOCK; i += W) peak = max(peak, absolute(load(x + i)));
  const float top = max(peak), size = top / largest;
  const float factor = top > 0 ? largest / top : 0;
  for (int i = 0; i < BLOCK; i += W) {
    const vf numbers = load(x + i);
    const vi whole = nearest(numbers * factor);
    // What is not finite must not vanish, but comparisons pass it by: times 0 it is not a number, everything else is 0.
    whole_sum += __builtin_convertvector(whole, vf) + numbers * 0.0f;
    store_narrow(rounded + i, whole);
  }
  const float sum_of_all = sum(whole_sum);
  *scale = size + sum_of_all * 0.0f;
  *total = sum_of_all * size;
}

inline void round_item(const int64_t* arguments, int64_t item) {
  const RoundArguments& a = *(const RoundArguments*)arguments;
  // Block by block over the item's rows, since scales of one block lie side by side.
  for (int64_t b = 0; b < a.depth / BLOCK; b++)
    each_row(item, a.num_rows, [&](int64_t row) {
      const float* x = a.x + row * a.x_stride + b * BLOCK;
      float *scale = a.scales + b * a.num_rows + row, *total = a.sums + b * a.num_rows + row;
      const int64_t place = row * a.depth + b * BLOCK;
      if (a.num_bits == 8)
        round_block(x, (int8_t*)a.rounded + place, scale, total, 127.0f);
      else
        round_block(x, (int16_t*)a.rounded + place, scale, total, 32767.0f);
    });
}

struct EmbedArguments {
  const int64_t* token_ids;
  const ByteBlock* panels;  // the packed output head, whose rows are the embedding
  float* out;               // [T, K]
  int64_t num_rows, depth;
};

inline void embed_item(const int64_t* arguments, int64_t item) {
  const EmbedArguments& a = *(const EmbedArguments*)arguments;
  const int64_t num_blocks = a.depth / BLOCK;
  each_row(item, a.num_rows, [&](int64_t row) {
    const int64_t token = a.token_ids[row], n = token % W;
    const ByteBlock* block = a.panels + token / W * num_blocks;
    float* out = a.out + row * a.depth;
    for (int64_t b = 0; b < num_blocks; b++, block++) {
      const float scale = widened_half(block->scales[n]);
      for (int i = 0; i < PAIR_RUNS; i++)
        for (int k = 0; k < 2; k++) out[b * BLOCK + 2 * i + k] = scale * (float)block->weights[2 * W * i + 2 * n + k];
    }
  });
}

struct TakeArguments {
  const float* x;
  const int64_t* rows;
  float* out;
  int64_t num_rows, width, x_stride;
};

inline void take_item(const int64_t* arguments, int64_t item) {
  const TakeArguments& a = *(const TakeArguments*)arguments;
  each_row(item, a.num_rows,
           [&](int64_t row) { std::memcpy(a.out + row * a.width, a.x + a.rows[row] * a.x_stride, 4 * a.width); });
}

struct NormArguments {
  const float* x;  // rows in groups that lie apart: heads of a token
  int64_t group_stride, rows_per_group;
  float* residual;  // or none
  const float* weight;
  float* out;
  int64_t num_rows, width;
  double eps;
};

// residual += x if there is a residual; out = rms_norm(that)
inline void norm_item(const int64_t* arguments, int64_t item) {
  const NormArguments& a = *(const NormArguments*)arguments;
  const int64_t wide = a.width / W * W;
  each_row(item, a.num_rows, [&](int64_t row) {
    const float* x = a.x + row / a.rows_per_group * a.group_stride + row % a.rows_per_group * a.width;
    if (a.residual) {
      float* total = a.residual + row * a.width;
      for (int64_t i = 0; i < wide; i += W) store(total + i, load(total + i) + load(x + i));
      for (int64_t i = wide; i < a.width; i++) total[i] += x[i];
      x = total;
    }
    vf squares = vf{};
    for (int64_t i = 0; i < wide; i += W) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (int64_t i = wide; i < a.width; i++) total += x[i] * x[i];
    const float scale = (float)(1.0 / std::sqrt((double)total / (double)a.width + a.eps));
    float* out = a.out + row * a.width;
    for (int64_t i = 0; i < wide; i += W) store(out + i, load(x + i) * scale * load(a.weight + i));
    for (int64_t i = wide; i < a.width; i++) out[i] = x[i] * scale * a.weight[i];
  });
}

struct ActivationArguments {
  const float* gate_up;  // [T, 2 I]
  float* out;            // [T, I]
  int64_t num_rows, width;
};

inline float silu(float x) { return x / (1.0f + std::exp(-x)); }

// out = silu(first half of each row) * second half
inline void silu_mul_item(const int64_t* arguments, int64_t item) {
  const ActivationArguments& a = *(const ActivationArguments*)arguments;
  const int64_t wide = a.width / W * W;
  each_row(item, a.num_rows, [&](int64_t row) {
    const float *gate = a.gate_up + 2 * row * a.width, *up = gate + a.width;
    float* out = a.out + row * a.width;
    for (int64_t i = 0; i < wide; i += W) {
      const vf g = load(gate + i);
      store(out + i, g / (1.0f + exponential(-g)) * load(up + i));
    }
    for (int64_t i = wide; i < a.width; i++) out[i] = silu(gate[i]) * up[i];
  });
}

// How numbers lie in KV pages. One token of one head is a row: d numbers, and behind int8 ones their float32 scale.
enum KVType : int64_t { KV_FLOAT32 = 0, KV_BFLOAT16 = 1, KV_INT8 = 2 };

inline int64_t kv_row_bytes(int64_t kv_type, int64_t head_size) {
  return kv_type == KV_FLOAT32 ? 4 * head_size : kv_type == KV_BFLOAT16 ? 2 * head_size : head_size + 4;
}

inline void store_kv_row(int64_t kv_type, const float* from, char* to, int64_t size) {
  if (kv_type == KV_FLOAT32) {
    std::memcpy(to, from, 4 * size);
  } else if (kv_type == KV_BFLOAT16) {
    for (int64_t i = 0; i < size; i += W) store_bfloat((uint16_t*)to + i, load(from + i));
  } else {
    vf peak = vf{};
    for (int64_t i = 0; i < size; i += W) peak = max(peak, absolute(load(from + i)));
    const float top = max(peak), factor = top > 0 ? 127.0f / top : 0;
    const float scale = top / 127.0f + not_finite(from, size);
    for (int64_t i = 0; i < size; i += W) store_narrow((int8_t*)to + i, nearest(load(from + i) * factor));
    std::memcpy(to + size, &scale, 4);
  }
}

struct RotateArguments {
  float *q, *k, *v;  // rows may lie apart, each one is contiguous
  int64_t q_stride, k_stride, v_stride;
  const float *cosines, *sines;  // [positions, d / 2]
  const int64_t *positions, *kv_slots;
  char* kv;  // [2, P, G, p, row]
  int64_t num_rows, num_heads, num_kv_heads, head_size, page_size, values_offset, kv_type;
};

inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] - second * sin[i];
    x[half + i] = second * cos[i] + first * sin[i];
  }
}

// Rotate queries and keys in place by halves; write keys and values to the pages.
inline void rotate_item(const int64_t* arguments, int64_t item) {
  const RotateArguments& a = *(const RotateArguments*)arguments;
  const int64_t half = a.head_size / 2, row_bytes = kv_row_bytes(a.kv_type, a.head_size);
  each_row(item, a.num_rows, [&](int64_t row) {
    const float *cos = a.cosines + a.positions[row] * half, *sin = a.sines + a.positions[row] * half;
    for (int64_t head = 0; head < a.num_heads; head++)
      rotate(a.q + row * a.q_stride + head * a.head_size, cos, sin, half);
    const int64_t page = a.kv_slots[row] / a.page_size, offset = a.kv_slots[row] % a.page_size;
    for (int64_t head = 0; head < a.num_kv_heads; head++) {
      char* to = a.kv + ((page * a.num_kv_heads + head) * a.page_size + offset) * row_bytes;
      float* key = a.k + row * a.k_stride + head * a.head_size;
      rotate(key, cos, sin, half);
      store_kv_row(a.kv_type, key, to, a.head_size);
      store_kv_row(a.kv_type, a.v + row * a.v_stride + head * a.head_size, to + a.values_offset, a.head_size);
    }
  });
}

}  // namespace CHAIRLIFT_ISA
