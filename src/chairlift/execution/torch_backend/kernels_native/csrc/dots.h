// Products of whole numbers: 32 inputs of one block, for W outputs at once. The one file with an instruction set's own
// instructions.
//
// Knows nothing of scales. Layouts of a block's 32 x W weights:
//   four bits   4 runs of 4 W bytes; run i has inputs 8 i ... 8 i + 3 of each output in its low nibbles,
//               8 i + 4 ... 8 i + 7 in its high ones
//   eight bits  16 runs of 2 W bytes; run i has inputs 2 i and 2 i + 1 of each output
#pragma once

#include "vectors.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Compilers like to keep products for later sums until there are no registers left.
#define IN_THIS_ORDER(register) asm("" : "+x"(register))

namespace CHAIRLIFT_ISA {

typedef int32_t Word __attribute__((may_alias, aligned(1)));  // four small inputs, or two large ones

constexpr int BLOCK = 32;  // inputs that share a scale
constexpr int NIBBLE_RUNS = 4;
constexpr int PAIR_RUNS = 16;

// sums[r][n] = sum over the block of weights[n] (0 ... 15) times inputs[r] (-127 ... 127)
template <int R>
inline void nibble_dots(const uint8_t* weights, const int8_t* const (&inputs)[R], vi (&sums)[R]) {
#if defined(__AVX512VNNI__) && defined(CHAIRLIFT_WIDE)
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i wide[R];
  for (int r = 0; r < R; r++) wide[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < NIBBLE_RUNS; i++) {
    __m512i both = _mm512_loadu_si512(weights + 64 * i);
    __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Word* words = (const Word*)(inputs[r] + 8 * i);
      wide[r] = _mm512_dpbusd_epi32(wide[r], low, _mm512_set1_epi32(words[0]));
      wide[r] = _mm512_dpbusd_epi32(wide[r], high, _mm512_set1_epi32(words[1]));
      IN_THIS_ORDER(wide[r]);
    }
  }
  for (int r = 0; r < R; r++) sums[r] = (vi)wide[r];
#elif defined(__AVX2__) && !defined(CHAIRLIFT_WIDE)
  // Eight products of pairs fit into 16 bits: 8 * 2 * 15 * 127 = 30,480, so only one widening per block.
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256i narrow[R];
#pragma GCC unroll 4
  for (int i = 0; i < NIBBLE_RUNS; i++) {
    __m256i both = _mm256_loadu_si256((const __m256i*)(weights + 32 * i));
    __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Word* words = (const Word*)(inputs[r] + 8 * i);
      __m256i first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(words[0]));
      narrow[r] = i == 0 ? first : _mm256_add_epi16(narrow[r], first);
      narrow[r] = _mm256_add_epi16(narrow[r], _mm256_maddubs_epi16(high, _mm256_set1_epi32(words[1])));
      IN_THIS_ORDER(narrow[r]);
    }
  }
  for (int r = 0; r < R; r++) sums[r] = (vi)_mm256_madd_epi16(narrow[r], ones);
#else
  for (int r = 0; r < R; r++) sums[r] = vi{};
  for (int i = 0; i < NIBBLE_RUNS; i++)
    for (int k = 0; k < 4; k++) {
      vi low, high;
      for (int n = 0; n < W; n++) {
        uint8_t both = weights[4 * W * i + 4 * n + k];
        low[n] = both & 15;
        high[n] = both >> 4;
      }
      for (int r = 0; r < R; r++) {
        const int8_t* row = inputs[r] + 8 * i + k;
        sums[r] += low * (int32_t)row[0] + high * (int32_t)row[4];
      }
    }
#endif
}

// The same for weights that have a byte each (8 runs of 4 W bytes; run i has inputs 4 i ... 4 i + 3 of each output), of P
// panels at once: inputs are spread once for all of them.
template <int R, int P>
inline void widened_nibble_dots(const uint8_t* const (&weights)[P], const int8_t* const (&inputs)[R], vi (&sums)[R][P]) {
#if defined(__AVX512VNNI__) && defined(CHAIRLIFT_WIDE)
  __m512i wide[R][P];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) wide[r][p] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int i = 0; i < 2 * NIBBLE_RUNS; i++) {
    __m512i four[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) four[p] = _mm512_loadu_si512(weights[p] + 64 * i);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const __m512i input = _mm512_set1_epi32(*(const Word*)(inputs[r] + 4 * i));
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        wide[r][p] = _mm512_dpbusd_epi32(wide[r][p], four[p], input);
        IN_THIS_ORDER(wide[r][p]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) sums[r][p] = (vi)wide[r][p];
#elif defined(__AVX2__) && !defined(CHAIRLIFT_WIDE)
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i narrow[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < 2 * NIBBLE_RUNS; i++) {
    __m256i four[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) four[p] = _mm256_loadu_si256((const __m256i*)(weights[p] + 32 * i));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const __m256i input = _mm256_set1_epi32(*(const Word*)(inputs[r] + 4 * i));
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        const __m256i products = _mm256_maddubs_epi16(four[p], input);
        narrow[r][p] = i == 0 ? products : _mm256_add_epi16(narrow[r][p], products);
        IN_THIS_ORDER(narrow[r][p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) sums[r][p] = (vi)_mm256_madd_epi16(narrow[r][p], ones);
#else
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) {
      sums[r][p] = vi{};
      for (int i = 0; i < BLOCK; i++) {
        vi column;
        for (int n = 0; n < W; n++) column[n] = weights[p][4 * W * (i / 4) + 4 * n + i % 4];
        sums[r][p] += column * (int32_t)inputs[r][i];
      }
    }
#endif
}

// sums[r][p][n] = sum over the block of weights[p][n] (-127 ... 127) times inputs[r] (16 bits), for P panels at once: inputs
// are spread once for all of them.
template <int R, int P>
inline void byte_dots(const int8_t* const (&weights)[P], const int16_t* const (&inputs)[R], vi (&sums)[R][P]) {
#if defined(__AVX512BW__) && defined(CHAIRLIFT_WIDE)
  __m512i wide[R][P];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) wide[r][p] = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int i = 0; i < PAIR_RUNS; i++) {
    __m512i pairs[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) pairs[p] = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)(weights[p] + 32 * i)));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const __m512i two = _mm512_set1_epi32(*(const Word*)(inputs[r] + 2 * i));
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        wide[r][p] = _mm512_add_epi32(wide[r][p], _mm512_madd_epi16(pairs[p], two));
        IN_THIS_ORDER(wide[r][p]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) sums[r][p] = (vi)wide[r][p];
#elif defined(__AVX2__) && !defined(CHAIRLIFT_WIDE)
  __m256i wide[R][P];
#pragma GCC unroll 16
  for (int i = 0; i < PAIR_RUNS; i++) {
    __m256i pairs[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) pairs[p] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(weights[p] + 16 * i)));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const __m256i two = _mm256_set1_epi32(*(const Word*)(inputs[r] + 2 * i));
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        const __m256i products = _mm256_madd_epi16(pairs[p], two);
        wide[r][p] = i == 0 ? products : _mm256_add_epi32(wide[r][p], products);
        IN_THIS_ORDER(wide[r][p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) sums[r][p] = (vi)wide[r][p];
#else
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) sums[r][p] = vi{};
  for (int i = 0; i < PAIR_RUNS; i++)
    for (int k = 0; k < 2; k++)
      for (int p = 0; p < P; p++) {
        vi column;
        for (int n = 0; n < W; n++) column[n] = weights[p][2 * W * i + 2 * n + k];
        for (int r = 0; r < R; r++) sums[r][p] += column * (int32_t)inputs[r][2 * i + k];
      }
#endif
}

}  // namespace CHAIRLIFT_ISA
