// Attention over int8 pages in tiles; what an item is, and how parts are put together, is as in attention.h.
//
// Knows nothing of requests. Both products are of whole numbers, so that pages go into tiles as they lie in memory:
//   scores[row][t] = q[row] . k[t]    q in 16 bits with a scale per row, its upper and lower byte a product each
//   sums[row] += p[row][t] v[t]       p, the weights times their values' scales, likewise for each segment of 256 tokens
// A head's part of a page, with four numbers that follow each other along the sum side by side:
//   keys    [d / 4][p][4]     a tile of 16 tokens: 16 words of a row each, d / 4 rows
//   values  [p / 4][d][4]     a tile of 64 tokens: copied from their pages, since a tile has one distance between rows
// Sums of whole numbers are exact, so a row's result is the same whatever rows are in its tile. 65,535 * 127 * 256 is less
// than 2**31.
#pragma once

#include "attention.h"
#include "tiles.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int64_t STRIP = 16;          // tokens of a tile of keys
constexpr int64_t CHUNK = TILE_BYTES;  // inputs of a product: numbers of a head, or tokens
constexpr int64_t ITEMS_AHEAD = 2;     // that other threads take meanwhile
constexpr int64_t STRIPS_AHEAD = 4;    // that are read from memory before they are needed

// Rows of whole numbers in 16 bits: upper and lower bytes apart, and what they must be multiplied with.
struct SplitRows {
  uint8_t *upper, *lower;
  float* scales;
};

typedef int32_t AttentionSums[TILE_ROWS][W];

inline vi whole_sums(const AttentionSums& upper, const AttentionSums& lower, int64_t row) {
  vi high, low;
  std::memcpy(&high, upper[row], sizeof high);
  std::memcpy(&low, lower[row], sizeof low);
  return (high << 8) + low;
}

inline void store_split(uint8_t* upper, uint8_t* lower, vi whole) {
  store_narrow((int8_t*)upper, whole >> 8);
#if defined(__AVX512F__)
  store_narrow((int8_t*)lower, whole);
#else
  for (int i = 0; i < W; i++) lower[i] = (uint8_t)whole[i];  // narrowing by hand may saturate
#endif
}

// Queries [rows][size], with sign: the largest number becomes 32,767.
inline void split_query(const float* x, float factor, int64_t size, const SplitRows& to, int64_t row) {
  vf peak = vf{};
  for (int64_t i = 0; i < size; i += W) peak = max(peak, absolute(load(x + i)));
  const float top = max(peak), stretch = top > 0 ? 32767.0f / top : 0;
  to.scales[row] = (top / 32767.0f + not_finite(x, size)) * factor;
  for (int64_t i = 0; i < size; i += W)
    store_split(to.upper + row * size + i, to.lower + row * size + i, nearest(load(x + i) * stretch));
}

// Weights of a segment, none below zero: the largest becomes 65,535. Behind the last token they are zero.
inline void split_weights(const float* weights, int64_t count, const SplitRows& to, int64_t row) {
  const int64_t padded = (count + W - 1) / W * W, end = (count + CHUNK - 1) / CHUNK * CHUNK;
  vf peak = vf{}, nothing = vf{};
  for (int64_t t = 0; t < padded; t += W) {
    const vf weight = load(weights + t);
    peak = max(peak, weight);
    nothing += weight * 0.0f;
  }
  const float top = max(peak), stretch = top > 0 ? 65535.0f / top : 0;
  to.scales[row] = top / 65535.0f + sum(nothing);
  uint8_t *upper = to.upper + row * SEGMENT_TOKENS, *lower = to.lower + row * SEGMENT_TOKENS;
  for (int64_t t = 0; t < padded; t += W) store_split(upper + t, lower + t, nearest(load(weights + t) * stretch));
  std::memset(upper + padded, 0, end - padded);
  std::memset(lower + padded, 0, end - padded);
}

// The tokens of a segment, 16 at a time, and where one head's numbers of them lie.
struct TileSegment {
  struct {
    const char *keys, *values, *key_scales, *value_scales;
  } strips[SEGMENT_TOKENS / STRIP];
  int64_t count, num_strips;
};

inline void find_tile_segment(const AttentionArguments& a, const Run& run, int64_t kv_head, int64_t start, int64_t stop,
                              TileSegment& segment) {
  const int64_t scales_offset = a.page_size * a.head_size;
  const int64_t part_bytes = a.page_size * kv_token_bytes(a.kv_type, a.head_size);
  segment.count = stop - start, segment.num_strips = 0;
  for (int64_t token = start; token < stop; token += STRIP) {
    const int64_t first = token % a.page_size;
    const char* keys = a.kv + (run.pages[token / a.page_size] * a.num_kv_heads + kv_head) * part_bytes;
    const char *values = keys + a.values_offset, *scales = keys + scales_offset + 4 * first;
    segment.strips[segment.num_strips++] = {keys + 4 * first, values + first * a.head_size, scales, scales + a.values_offset};
  }
}

inline void prefetch_keys(const AttentionArguments& a, const TileSegment& segment, int64_t strip) {
  if (strip >= segment.num_strips) return;
  const auto& place = segment.strips[strip];
  for (int64_t row = 0; row < a.head_size / 4; row++) __builtin_prefetch(place.keys + row * a.page_size * 4, 0, 3);
  __builtin_prefetch(place.key_scales, 0, 3);
  prefetch(place.values, STRIP * a.head_size);
  __builtin_prefetch(place.value_scales, 0, 2);
}

// Tiles: 0 and 1, 5 and 6 sums of upper and lower bytes; 2 and 3 those of rows; 4 and 7 keys or values.

// Scores of up to 16 rows.
inline void score_by_tiles(const AttentionArguments& a, const SplitRows& queries, int64_t first_row, int64_t num_rows,
                           const TileSegment& segment, float* scores) {
  const int64_t size = a.head_size, num_chunks = size / CHUNK;
  alignas(64) AttentionSums sums[2][2];
  const auto load_rows = [&](int64_t chunk) {
    load_tile<2>(queries.upper + first_row * size + chunk * CHUNK, size);
    load_tile<3>(queries.lower + first_row * size + chunk * CHUNK, size);
  };
  const auto begin = [&](int64_t strip) {
    clear_tile<0>();
    clear_tile<1>();
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
      if (num_chunks > 1) load_rows(chunk);
      load_tile<4>(segment.strips[strip].keys + chunk * (CHUNK / 4) * a.page_size * 4, a.page_size * 4);
      multiply_bytes<0, 2, 4>();
      multiply_bytes<1, 3, 4, false>();
    }
    store_tile<0>(sums[strip % 2][0], TILE_BYTES);
    store_tile<1>(sums[strip % 2][1], TILE_BYTES);
  };
  if (num_chunks == 1) load_rows(0);
  begin(0);
  for (int64_t strip = 0; strip < segment.num_strips; strip++) {
    if (strip + 1 < segment.num_strips) begin(strip + 1);
    if (first_row == 0) prefetch_keys(a, segment, strip + STRIPS_AHEAD);
    const vf key_scale = load((const float*)segment.strips[strip].key_scales);
    float* to = scores + first_row * SCORE_STRIDE + strip * STRIP;
    for (int64_t row = 0; row < num_rows; row++) {
      const vf whole = __builtin_convertvector(whole_sums(sums[strip % 2][0], sums[strip % 2][1], row), vf);
      store(to + row * SCORE_STRIDE, whole * (key_scale * queries.scales[first_row + row]));
    }
  }
}

// Sums of up to 16 rows, for 32 numbers of the head at a time.
inline void gather_by_tiles(const SplitRows& weights, int64_t first_row, int64_t num_rows, int64_t count,
                            const char* values, int64_t size, float* sums) {
  alignas(64) AttentionSums whole[4];
  for (int64_t column = 0; column < size; column += 2 * W) {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<5>();
    clear_tile<6>();
    for (int64_t token = 0; token < count; token += CHUNK) {
      const char* from = values + token * size + 4 * column;
      load_tile<2>(weights.upper + first_row * SEGMENT_TOKENS + token, SEGMENT_TOKENS);
      load_tile<3>(weights.lower + first_row * SEGMENT_TOKENS + token, SEGMENT_TOKENS);
      load_tile<4>(from, 4 * size);
      load_tile<7>(from + TILE_BYTES, 4 * size);
      multiply_bytes<0, 2, 4, false>();
      multiply_bytes<1, 3, 4, false>();
      multiply_bytes<5, 2, 7, false>();
      multiply_bytes<6, 3, 7, false>();
    }
    store_tile<0>(whole[0], TILE_BYTES);
    store_tile<1>(whole[1], TILE_BYTES);
    store_tile<5>(whole[2], TILE_BYTES);
    store_tile<6>(whole[3], TILE_BYTES);
    for (int64_t row = 0; row < num_rows; row++) {
      float* to = sums + (first_row + row) * size + column;
      const float scale = weights.scales[first_row + row];
      for (int half = 0; half < 2; half++)
        store(to + half * W,
              load(to + half * W) +
                  __builtin_convertvector(whole_sums(whole[2 * half], whole[2 * half + 1], row), vf) * scale);
    }
  }
}

// Read the first keys of an item that some thread will take soon: each page is a piece of memory of its own.
inline void prefetch_item(const AttentionArguments& a, int64_t item) {
  if (item >= a.num_runs * a.num_kv_heads) return;
  const Run& run = a.runs[item / a.num_kv_heads];
  TileSegment segment;
  const int64_t stop = run.start + STRIPS_AHEAD * STRIP;
  find_tile_segment(a, run, item % a.num_kv_heads, run.start, stop < run.stop ? stop : run.stop, segment);
  for (int64_t strip = 0; strip < segment.num_strips; strip++) prefetch_keys(a, segment, strip);
}

inline void set_attention_tiles(int64_t num_rows) {
  TileShapes shapes;
  for (int tile = 0; tile < NUM_TILES; tile++)
    shapes.set(tile, tile == 4 || tile == 7 ? TILE_ROWS : num_rows, TILE_BYTES);
  set_tiles(shapes);
}

inline void attention_tiles_item(const int64_t* arguments, int64_t item) {
  const AttentionArguments& a = *(const AttentionArguments*)arguments;
  if (a.kv_type != KV_INT8_TILES) return attention_item(arguments, item);
  const Run& run = a.runs[item / a.num_kv_heads];
  const int64_t kv_head = item % a.num_kv_heads, size = a.head_size, num_rows = run.num_tokens * a.group;
  // Tiles of equal shape; what the last one has too many is computed from whatever is there, and never looked at.
  const int64_t tile_rows = num_rows < TILE_ROWS ? num_rows : TILE_ROWS;
  const int64_t padded_rows = (num_rows + tile_rows - 1) / tile_rows * tile_rows;
  float* sums = scratch(num_rows * (size + SCORE_STRIDE + 2) + 2 * padded_rows + SEGMENT_TOKENS +
                        (padded_rows * (2 * size + 2 * SEGMENT_TOKENS) + SEGMENT_TOKENS * size) / 4 + 64);
  float *scores = sums + num_rows * size, *value_scales = scores + num_rows * SCORE_STRIDE;
  float *highest = value_scales + SEGMENT_TOKENS, *totals = highest + num_rows;
  SplitRows queries, weights;
  queries.scales = totals + num_rows, weights.scales = queries.scales + padded_rows;
  char* bytes = (char*)(weights.scales + padded_rows);
  bytes += -(intptr_t)bytes & 63;
  queries.upper = (uint8_t*)bytes, queries.lower = queries.upper + padded_rows * size;
  weights.upper = queries.lower + padded_rows * size, weights.lower = weights.upper + padded_rows * SEGMENT_TOKENS;
  char* values = (char*)weights.lower + padded_rows * SEGMENT_TOKENS;

  const int64_t whole_pages = SEGMENT_TOKENS / a.page_size * a.page_size;
  const int64_t segment_tokens = whole_pages ? whole_pages : SEGMENT_TOKENS;
  const auto segment_end = [&](int64_t start) {
    // Segments begin at fixed positions too, even where a window begins within one.
    const int64_t next = (start / segment_tokens + 1) * segment_tokens;
    return next < run.stop ? next : run.stop;
  };
  TileSegment segment;
  find_tile_segment(a, run, kv_head, run.start, segment_end(run.start), segment);
  for (int64_t strip = 0; strip < STRIPS_AHEAD; strip++) prefetch_keys(a, segment, strip);

  for (int64_t row = 0; row < num_rows; row++) {
    const float* q = a.q + (run.first_row + row / a.group) * a.q_stride + (kv_head * a.group + row % a.group) * size;
    split_query(q, (float)a.scale, size, queries, row);
    highest[row] = LOWEST, totals[row] = 0;
  }
  for (int64_t i = 0; i < num_rows * size; i++) sums[i] = 0;
  set_attention_tiles(tile_rows);
  for (int64_t start = run.start; start < run.stop;) {
    const int64_t stop = segment_end(start), count = stop - start;
    if (start > run.start) {
      find_tile_segment(a, run, kv_head, start, stop, segment);
      for (int64_t strip = 0; strip < STRIPS_AHEAD; strip++) prefetch_keys(a, segment, strip);
    }
    for (int64_t row = 0; row < num_rows; row += tile_rows)
      score_by_tiles(a, queries, row, num_rows - row < tile_rows ? num_rows - row : tile_rows, segment, scores);
    if (stop == run.stop) prefetch_item(a, item + ITEMS_AHEAD);
    for (int64_t strip = 0; strip < segment.num_strips; strip++) {
      std::memcpy(value_scales + strip * STRIP, segment.strips[strip].value_scales, 4 * STRIP);
      std::memcpy(values + strip * STRIP * size, segment.strips[strip].values, STRIP * size);
    }
    // Behind the last token there may be scales that are not numbers, which not even a weight of zero undoes.
    for (int64_t t = count; t < segment.num_strips * STRIP; t++) value_scales[t] = 0;
    for (int64_t row = 0; row < num_rows; row++) {
      const int64_t position = run.first_position + row / a.group;
      const int64_t low = a.window > 0 ? position - a.window + 1 - start : 0;
      float* row_scores = scores + row * SCORE_STRIDE;
      weigh(row_scores, low, position + 1 - start, count, value_scales, highest + row, totals + row, sums + row * size,
            size);
      split_weights(row_scores, count, weights, row);
    }
    for (int64_t row = 0; row < num_rows; row += tile_rows)
      gather_by_tiles(weights, row, num_rows - row < tile_rows ? num_rows - row : tile_rows, count, values, size, sums);
    start = stop;
  }
  release_tiles();
  finish_item(a, run, kv_head, {sums, highest, totals});
}

}  // namespace CHAIRLIFT_ISA

#endif
