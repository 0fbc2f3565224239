// Products of a few rows with weights of four bits that lie as for tiles, in whole numbers.
//
// Knows nothing of layers. A tile's cost is making bfloat16 of its weights, which few rows do not pay back. Here rows
// become whole numbers per 32 inputs instead, as in llama.cpp's Q8 activations, and nibbles are multiplied as they are.
// So a row's result differs in its last bits from what it is among many rows; who wants none of that sets few_rows to 0.
//
// A word of a NibbleTile has four inputs, all even or all odd ones of eight, of an output n in one half of its nibbles,
// and of output n + 8 in the other: see _NIBBLE_PLACES in packing.py.
#pragma once

#include "tile_blocks.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int64_t FEW_AT_ONCE = 4;  // rows whose sums stay in registers

// The inputs of a block in the order of a word's bytes: of four times eight inputs, the even and then the odd ones.
struct FewInputs {
  int8_t low[BLOCK], high[BLOCK];
};

// Rows of whole numbers: [R][K / 32].
struct FewRows {
  FewInputs* inputs;
  float *scales, *totals;
  int64_t num_blocks;

  static int64_t num_floats(int64_t num_rows, int64_t depth) {
    return num_rows * (depth / BLOCK) * (int64_t)(sizeof(FewInputs) / 4 + 2);
  }

  FewRows(float* memory, int64_t num_rows, int64_t depth) : inputs((FewInputs*)memory), num_blocks(depth / BLOCK) {
    scales = memory + num_rows * num_blocks * (int64_t)(sizeof(FewInputs) / 4);
    totals = scales + num_rows * num_blocks;
  }

  void round(const uint16_t* x, int64_t row) {
    typedef int8_t Bytes __attribute__((vector_size(BLOCK)));
    const Bytes low = {6,  0,  2,  4,  7,  1,  3,  5,  14, 8,  10, 12, 15, 9,  11, 13,
                       22, 16, 18, 20, 23, 17, 19, 21, 30, 24, 26, 28, 31, 25, 27, 29};
    const Bytes high = {4,  6,  0,  2,  5,  7,  1,  3,  12, 14, 8,  10, 13, 15, 9,  11,
                        20, 22, 16, 18, 21, 23, 17, 19, 28, 30, 24, 26, 29, 31, 25, 27};
    for (int64_t b = 0, place = row * num_blocks; b < num_blocks; b++, place++, x += BLOCK) {
      float numbers[BLOCK];
      Bytes whole;
      for (int i = 0; i < BLOCK; i += W) store(numbers + i, load_bfloat(x + i));
      round_block(numbers, (int8_t*)&whole, scales + place, totals + place, 127.0f);
      const Bytes in_low = __builtin_shuffle(whole, low), in_high = __builtin_shuffle(whole, high);
      std::memcpy(inputs[place].low, &in_low, BLOCK);
      std::memcpy(inputs[place].high, &in_high, BLOCK);
    }
  }
};

// sums[i] + the product of a word's four bytes (0 ... 15) with those of the inputs: the first four for even words.
inline vi add_pairs_of_words(vi sums, vu words, const int8_t* inputs) {
  int64_t both;
  std::memcpy(&both, inputs, 8);
#if defined(__AVX512VNNI__)
  return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)words, _mm512_set1_epi64(both));
#else
  for (int i = 0; i < W; i++)
    for (int k = 0; k < 4; k++) sums[i] += (int32_t)(words[i] >> (8 * k) & 255) * inputs[i % 2 * 4 + k];
  return sums;
#endif
}

// Bits of a where the mask has them, else of b.
template <uint32_t MASK>
inline vu chosen(vu a, vu b) {
#if defined(__AVX512F__)
  return (vu)_mm512_ternarylogic_epi32(_mm512_set1_epi32((int)MASK), (__m512i)a, (__m512i)b, 0xca);
#else
  return (a & MASK) | (b & ~MASK);
#endif
}

// One number for each output, of pairs of words.
inline vf sums_of_pairs(vf low, vf high) {
  const vi lanes = first_lanes();
  return __builtin_shuffle(low, high, 2 * lanes) + __builtin_shuffle(low, high, 2 * lanes + 1);
}

// R rows times a panel, in an order that only the row itself decides.
template <int R>
inline void multiply_few(const NibbleTile* block, const FewRows& rows, int64_t row, const float* bias, float* to,
                         int64_t stride) {
  const int64_t num_blocks = rows.num_blocks;
  vf low[R], high[R], rest[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) low[r] = high[r] = vf{}, rest[r] = bias ? load(bias) : vf{};
  const FewInputs* inputs = rows.inputs + row * num_blocks;
  const float *scales = rows.scales + row * num_blocks, *totals = rows.totals + row * num_blocks;
  for (int64_t b = 0; b < num_blocks; b++, block++) {
    read_ahead(block, sizeof *block);
    vi in_low[R], in_high[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) in_low[r] = in_high[r] = vi{};
#pragma GCC unroll 4
    for (int four = 0; four < TILE_ROWS / 4; four++) {
      vu words;
      std::memcpy(&words, block->weights[four], sizeof words);
      const vu shifted = words >> 4;
      const vu of_low = chosen<0x00ffff00>(shifted, words) & 0x0f0f0f0f;
      const vu of_high = chosen<0xff0000ff>(shifted, words) & 0x0f0f0f0f;
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        in_low[r] = add_pairs_of_words(in_low[r], of_low, inputs[r * num_blocks + b].low + 8 * four);
        in_high[r] = add_pairs_of_words(in_high[r], of_high, inputs[r * num_blocks + b].high + 8 * four);
      }
    }
    const Doubled scale = doubled(load_half(block->scales));
    const vf minimum = load_half(block->minimums);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      const vf own = all(scales[r * num_blocks + b]);
      low[r] += (scale.low * own) * __builtin_convertvector(in_low[r], vf);
      high[r] += (scale.high * own) * __builtin_convertvector(in_high[r], vf);
      rest[r] += minimum * totals[r * num_blocks + b];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) store(to + r * stride, sums_of_pairs(low[r], high[r]) + rest[r]);
}

inline void multiply_panel_by_few(const NibbleTile* panel, const FewRows& rows, int64_t num_rows, const float* bias,
                                  float* to, int64_t stride) {
  for (int64_t row = 0; row < num_rows; row += FEW_AT_ONCE, to += FEW_AT_ONCE * stride) {
    switch (num_rows - row < FEW_AT_ONCE ? num_rows - row : FEW_AT_ONCE) {
      case 4: multiply_few<4>(panel, rows, row, bias, to, stride); break;
      case 3: multiply_few<3>(panel, rows, row, bias, to, stride); break;
      case 2: multiply_few<2>(panel, rows, row, bias, to, stride); break;
      default: multiply_few<1>(panel, rows, row, bias, to, stride);
    }
  }
}

}  // namespace CHAIRLIFT_ISA

#endif
