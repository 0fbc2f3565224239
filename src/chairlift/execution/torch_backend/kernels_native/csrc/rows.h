// Operations on single rows: embedding, norm, rotation with the KV write, gated activation, rounding for products.
//
// Knows nothing of layers. An item is one block of rows; all memory but KV pages and stored tables is float32.
#pragma once

#include <cmath>

#include "linear.h"

namespace CHAIRLIFT_ISA {

constexpr int64_t ROWS_PER_ITEM = 4;
constexpr int64_t MAX_HEAD_SIZE = 1024;

template <typename RowBody>
inline void each_row(int64_t item, int64_t num_rows, RowBody body) {
  const int64_t first = item * ROWS_PER_ITEM;
  for (int64_t row = first; row < num_rows && row < first + ROWS_PER_ITEM; row++) body(row);
}

// What products read. Only whole numbers have scales and sums.
enum NumberKind : int64_t { NOT_ROUNDED = 0, BFLOAT16 = 2, INT8 = 8, INT16 = 16 };

// Where the rounded numbers of rows go.
struct Rounded {
  int64_t kind;
  void* numbers;  // [T, K]
  float* scales;  // [K / 32, T]
  float* sums;    // [K / 32, T]
};

struct RoundArguments {
  const float* x;
  int64_t x_stride, num_rows, depth;
  Rounded to;
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

inline void round_row(const float* x, const Rounded& to, int64_t row, int64_t num_rows, int64_t depth) {
  if (to.kind == BFLOAT16) {
    uint16_t* halves = (uint16_t*)to.numbers + row * depth;
    for (int64_t i = 0; i < depth; i += W) store_bfloat(halves + i, load(x + i));
    return;
  }
  float *scale = to.scales + row, *total = to.sums + row;
  for (int64_t i = 0; i < depth; i += BLOCK, scale += num_rows, total += num_rows)
    if (to.kind == INT8)
      round_block(x + i, (int8_t*)to.numbers + row * depth + i, scale, total, 127.0f);
    else
      round_block(x + i, (int16_t*)to.numbers + row * depth + i, scale, total, 32767.0f);
}

inline void round_item(const int64_t* arguments, int64_t item) {
  const RoundArguments& a = *(const RoundArguments*)arguments;
  each_row(item, a.num_rows, [&](int64_t row) { round_row(a.x + row * a.x_stride, a.to, row, a.num_rows, a.depth); });
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
  Rounded rounded;
};

// residual += x if there is a residual; out = rms_norm(that), and out rounded if asked for
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
    if (a.rounded.kind) round_row(out, a.rounded, row, a.num_rows, a.width);
  });
}

struct ActivationArguments {
  const float* gate_up;  // [T, 2 I]
  float* out;            // [T, I]
  int64_t num_rows, width;
  Rounded rounded;
};

inline float silu(float x) { return x / (1.0f + std::exp(-x)); }
inline vf silu(vf x) { return x / (1.0f + exponential(-x)); }

// out = silu(first half of each row) * second half, and out rounded if asked for
inline void silu_mul_item(const int64_t* arguments, int64_t item) {
  const ActivationArguments& a = *(const ActivationArguments*)arguments;
  const int64_t wide = a.width / W * W;
  each_row(item, a.num_rows, [&](int64_t row) {
    const float *gate = a.gate_up + 2 * row * a.width, *up = gate + a.width;
    float* out = a.out + row * a.width;
    for (int64_t i = 0; i < wide; i += W) store(out + i, silu(load(gate + i)) * load(up + i));
    for (int64_t i = wide; i < a.width; i++) out[i] = silu(gate[i]) * up[i];
    if (a.rounded.kind) round_row(out, a.rounded, row, a.num_rows, a.width);
  });
}

// How numbers lie in KV pages. A head's part of a page:
//   keys    [d][p], so that a vector holds one number of W tokens
//   values  [p][d]
// and behind either, if they are int8, a float32 scale per token: [p]. How int8 lies for tiles says attention_tiles.h.
enum KVType : int64_t { KV_FLOAT32 = 0, KV_BFLOAT16 = 1, KV_INT8 = 2, KV_INT8_TILES = 3 };

inline int64_t kv_number_bytes(int64_t kv_type) { return kv_type == KV_FLOAT32 ? 4 : kv_type == KV_BFLOAT16 ? 2 : 1; }

inline int64_t kv_token_bytes(int64_t kv_type, int64_t head_size) {
  return kv_number_bytes(kv_type) * head_size + (kv_type >= KV_INT8 ? 4 : 0);
}

// Numbers [words][width]: each word's are side by side.
struct StoreAs {
  int64_t first, stride;  // in numbers
  int64_t width = 1;
};

template <typename Number>
inline void place_numbers(const Number* from, char* part, StoreAs place, int64_t size) {
  Number* to = (Number*)part + place.first;
  if (place.stride == 1)
    std::memcpy(to, from, sizeof(Number) * size);
  else if (place.width == 4)
    for (int64_t i = 0; i < size / 4; i++) std::memcpy(to + i * place.stride, from + 4 * i, sizeof(Number) * 4);
  else
    for (int64_t i = 0; i < size; i++) to[i * place.stride] = from[i];
}

// Write one token's numbers to its head's part of a page.
inline void store_token(int64_t kv_type, const float* from, char* part, StoreAs place, char* scale_place, int64_t size) {
  if (kv_type == KV_FLOAT32) {
    place_numbers(from, part, place, size);
  } else if (kv_type == KV_BFLOAT16) {
    uint16_t halves[MAX_HEAD_SIZE];
    for (int64_t i = 0; i < size; i += W) store_bfloat(halves + i, load(from + i));
    place_numbers(halves, part, place, size);
  } else {
    int8_t bytes[MAX_HEAD_SIZE];
    vf peak = vf{};
    for (int64_t i = 0; i < size; i += W) peak = max(peak, absolute(load(from + i)));
    const float top = max(peak), factor = top > 0 ? 127.0f / top : 0;
    const float scale = top / 127.0f + not_finite(from, size);
    for (int64_t i = 0; i < size; i += W) store_narrow(bytes + i, nearest(load(from + i) * factor));
    place_numbers(bytes, part, place, size);
    std::memcpy(scale_place, &scale, 4);
  }
}

struct RotateArguments {
  float *q, *k, *v;  // rows may lie apart, each one is contiguous
  int64_t q_stride, k_stride, v_stride;
  const float *cosines, *sines;  // [positions, d / 2]
  const int64_t *positions, *kv_slots;
  char* kv;  // [2, P, G] heads' parts
  int64_t num_rows, num_heads, num_kv_heads, head_size, page_size, values_offset, kv_type, num_threads;
};

// Which item to compute when so many were begun: threads that begin one after the other get items far apart, since a
// page's tokens share cache lines, for which threads would fight.
inline int64_t far_apart(int64_t begun, int64_t num_items, int64_t num_threads) {
  const int64_t share = num_items / num_threads, rest = num_items % num_threads, thread = begun % num_threads;
  return thread * share + (thread < rest ? thread : rest) + begun / num_threads;
}

inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] - second * sin[i];
    x[half + i] = second * cos[i] + first * sin[i];
  }
}

// Rotate queries and keys in place by halves; write keys and values to the pages.
inline void rotate_item(const int64_t* arguments, int64_t begun) {
  const RotateArguments& a = *(const RotateArguments*)arguments;
  const int64_t item = far_apart(begun, (a.num_rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, a.num_threads);
  const int64_t half = a.head_size / 2, num_numbers = a.page_size * a.head_size;
  const int64_t scales_offset = num_numbers * kv_number_bytes(a.kv_type);
  const int64_t part_bytes = a.page_size * kv_token_bytes(a.kv_type, a.head_size);
  each_row(item, a.num_rows, [&](int64_t row) {
    const float *cos = a.cosines + a.positions[row] * half, *sin = a.sines + a.positions[row] * half;
    for (int64_t head = 0; head < a.num_heads; head++)
      rotate(a.q + row * a.q_stride + head * a.head_size, cos, sin, half);
    const int64_t page = a.kv_slots[row] / a.page_size, offset = a.kv_slots[row] % a.page_size;
    StoreAs key_place = {offset, a.page_size}, value_place = {offset * a.head_size, 1};
    if (a.kv_type == KV_INT8_TILES)
      key_place = {4 * offset, 4 * a.page_size, 4}, value_place = {offset / 4 * 4 * a.head_size + offset % 4, 4};
    for (int64_t head = 0; head < a.num_kv_heads; head++) {
      char* keys = a.kv + (page * a.num_kv_heads + head) * part_bytes;
      char *values = keys + a.values_offset, *key_scale = keys + scales_offset + 4 * offset;
      float* key = a.k + row * a.k_stride + head * a.head_size;
      rotate(key, cos, sin, half);
      store_token(a.kv_type, key, keys, key_place, key_scale, a.head_size);
      store_token(a.kv_type, a.v + row * a.v_stride + head * a.head_size, values, value_place,
                  key_scale + a.values_offset, a.head_size);
    }
  });
}

}  // namespace CHAIRLIFT_ISA
