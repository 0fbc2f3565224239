// Blocks of weights as tiles take them, and how those of few bits become bfloat16.
//
// Knows nothing of rows. Weights lie in panels of 16 outputs, and a block of 32 inputs of a panel is one tile
// [K / 2][16 outputs][2]:
//   bfloat16    [N / 16][K / 32] of HalfBlock
//   four bits   [N / 16][K / 32] of NibbleTile       weight = scale * q + minimum,  q = 0 ... 15
//   eight bits  [N / 16][K / 32] of ByteBlock         weight = scale * q,            q = -127 ... 127
#pragma once

#include "rows.h"
#include "tiles.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int64_t TILE_NUMBERS = TILE_ROWS * TILE_BYTES / 2;

struct HalfBlock {
  uint16_t weights[TILE_NUMBERS];
};

struct NibbleTile {
  uint16_t scales[W];
  uint16_t minimums[W];
  uint32_t weights[TILE_ROWS / 4][W];  // eight nibbles: numbers i and 16 + i of four rows, see as_halves
};

// A number for each of 8 outputs, and the same 8 numbers of the other half, each twice: for the two inputs of a word.
struct Doubled {
  vf low, high;
};

inline Doubled doubled(vf numbers) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return {(vf)_mm512_permutexvar_ps(low, (__m512)numbers),
          (vf)_mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(8)), (__m512)numbers)};
#else
  Doubled twice;
  for (int i = 0; i < W; i++) twice.low[i] = numbers[i / 2], twice.high[i] = numbers[W / 2 + i / 2];
  return twice;
#endif
}

inline void store_halves(uint16_t* to, vf low, vf high) {
#if defined(__AVX512BF16__)
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  std::memcpy(to, &both, sizeof both);
#else
  store_bfloat(to, low);
  store_bfloat(to + W, high);
#endif
}

inline const uint16_t* as_halves(const HalfBlock& block, uint16_t*) { return block.weights; }

// Nibbles become floats without a conversion: in the mantissa of a power of two, 2**e, they stand for 2**e + q if they begin
// at bit 23 - e. What that adds is taken off the minimum, with 2**e times the scale, whose last bit is far below a weight's.
template <int BIT>
inline vf nibble_and_power(vu words) {
  constexpr uint32_t power = (uint32_t)(127 + 23 - BIT) << 23;
#if defined(__AVX512F__)
  // (words & mask) | power
  return (vf)_mm512_ternarylogic_epi32((__m512i)words, _mm512_set1_epi32(15 << BIT), _mm512_set1_epi32(power), 0xea);
#else
  return (vf)((words & (uint32_t)(15 << BIT)) | power);
#endif
}

inline const uint16_t* as_halves(const NibbleTile& block, uint16_t* to) {
  constexpr int LOW = 12, HIGH = 16;  // where the nibbles of either half begin when they become floats
  const Doubled scale = doubled(load_half(block.scales)), minimum = doubled(load_half(block.minimums));
  const vf low = minimum.low - scale.low * (float)(1 << (23 - LOW));
  const vf high = minimum.high - scale.high * (float)(1 << (23 - HIGH));
  const auto store_row = [&](vu low_words, vu high_words) {
    store_halves(to, nibble_and_power<LOW>(low_words) * scale.low + low,
                 nibble_and_power<HIGH>(high_words) * scale.high + high);
    to += 2 * W;
  };
#pragma GCC unroll 4
  for (int four = 0; four < TILE_ROWS / 4; four++) {
    vu words;
    std::memcpy(&words, block.weights[four], sizeof words);
    store_row(words, words);
    store_row(words >> 8, words >> 12);
    store_row(words >> 12, words << 12);
    store_row(words << 12, words << 8);
  }
  return to - TILE_NUMBERS;
}

inline const uint16_t* as_halves(const ByteBlock& block, uint16_t* to) {
  const Doubled scale = doubled(load_half(block.scales));
#pragma GCC unroll 4
  for (int row = 0; row < TILE_ROWS; row++) {
    const int8_t* pairs = block.weights + 2 * W * row;
    store_halves(to + 2 * W * row, load_int8(pairs) * scale.low, load_int8(pairs + W) * scale.high);
  }
  return to;
}

}  // namespace CHAIRLIFT_ISA

#endif
