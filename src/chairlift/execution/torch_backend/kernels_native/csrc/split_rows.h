// Rows of attention as whole numbers, queries in 8 bits and weights in 16, and where the numbers of int8 pages for tiles lie.
//
// Knows nothing of products. A head's part of a page, with four numbers that follow each other along the sum side by side:
//   keys    [d / 4][p][4]     a tile of 16 tokens: 16 words of a row each, d / 4 rows
//   values  [p / 4][d][4]     a tile of 64 tokens: copied from their pages, since a tile has one distance between rows
#pragma once

#include "attention.h"
#include "tiles.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int64_t STRIP = 16;          // tokens of a tile of keys
constexpr int64_t CHUNK = TILE_BYTES;  // inputs of a product: numbers of a head, or tokens
constexpr int64_t STRIPS_AHEAD = 8;    // that are read from memory before they are needed

// Rows of whole numbers in 16 bits: upper and lower bytes apart, and what they must be multiplied with.
struct SplitRows {
  uint8_t *upper, *lower;
  float* scales;
};

inline void store_split(uint8_t* upper, uint8_t* lower, vi whole) {
  store_narrow((int8_t*)upper, whole >> 8);
#if defined(__AVX512F__)
  store_narrow((int8_t*)lower, whole);
#else
  for (int i = 0; i < W; i++) lower[i] = (uint8_t)whole[i];  // narrowing by hand may saturate
#endif
}

// Queries in eight bits, as keys are.
struct QueryRows {
  int8_t* numbers;  // [rows][size]
  float* scales;
};

// The largest number becomes 127.
inline void round_query(const float* x, float factor, int64_t size, const QueryRows& to, int64_t row) {
  vf peak = vf{};
  for (int64_t i = 0; i < size; i += W) peak = max(peak, absolute(load(x + i)));
  const float top = max(peak), stretch = top > 0 ? 127.0f / top : 0;
  to.scales[row] = (top / 127.0f + not_finite(x, size)) * factor;
  for (int64_t i = 0; i < size; i += W) store_narrow(to.numbers + row * size + i, nearest(load(x + i) * stretch));
}

// The tokens of a segment, 16 at a time, and where one head's numbers of them lie.
struct TileSegment {
  struct Strip {
    const char *keys, *values, *key_scales, *value_scales;
  } strips[SEGMENT_TOKENS / STRIP];
  int64_t num_strips;
};

inline void find_tile_segment(const AttentionArguments& a, const Run& run, int64_t kv_head, int64_t start, int64_t stop,
                              TileSegment& segment) {
  const int64_t scales_offset = a.page_size * a.head_size;
  const int64_t part_bytes = a.page_size * kv_token_bytes(a.kv_type, a.head_size);
  segment.num_strips = 0;
  for (int64_t token = start; token < stop; token += STRIP) {
    const int64_t first = token % a.page_size;
    const char* keys = a.kv + (run.pages[token / a.page_size] * a.num_kv_heads + kv_head) * part_bytes;
    const char *values = keys + a.values_offset, *scales = keys + scales_offset + 4 * first;
    segment.strips[segment.num_strips++] = {keys + 4 * first, values + first * a.head_size, scales, scales + a.values_offset};
  }
}

// Segments begin at fixed positions, even where a window begins within one.
inline int64_t segment_end(const AttentionArguments& a, const Run& run, int64_t start) {
  const int64_t whole_pages = SEGMENT_TOKENS / a.page_size * a.page_size;
  const int64_t segment_tokens = whole_pages ? whole_pages : SEGMENT_TOKENS;
  const int64_t next = (start / segment_tokens + 1) * segment_tokens;
  return next < run.stop ? next : run.stop;
}

// Those of a head whose part lies so many bytes behind.
inline void prefetch_keys(const AttentionArguments& a, const TileSegment::Strip& strip, int64_t bytes = 0) {
  const char* keys = strip.keys + bytes;
  for (int64_t row = 0; row < a.head_size / 4; row++) __builtin_prefetch(keys + row * a.page_size * 4, 0, 2);
  __builtin_prefetch(strip.key_scales + bytes, 0, 2);
}

inline void prefetch_values(const AttentionArguments& a, const TileSegment::Strip& strip, int64_t bytes = 0) {
  prefetch(strip.values + bytes, STRIP * a.head_size);
  __builtin_prefetch(strip.value_scales + bytes, 0, 2);
}

}  // namespace CHAIRLIFT_ISA

#endif
