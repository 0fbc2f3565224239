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
constexpr int64_t STRIPS_AHEAD = 8;    // that are read from memory before they are needed

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

inline void prefetch_keys(const AttentionArguments& a, const TileSegment& segment, int64_t strip) {
  if (strip >= segment.num_strips) return;
  const auto& place = segment.strips[strip];
  for (int64_t row = 0; row < a.head_size / 4; row++) __builtin_prefetch(place.keys + row * a.page_size * 4, 0, 2);
  __builtin_prefetch(place.key_scales, 0, 2);
}

inline void prefetch_values(const AttentionArguments& a, const TileSegment& segment, int64_t strip) {
  if (strip >= segment.num_strips) return;
  prefetch(segment.strips[strip].values, STRIP * a.head_size);
  __builtin_prefetch(segment.strips[strip].value_scales, 0, 2);
}

// Tiles: 0 and 1, 5 and 6 sums of upper and lower bytes; 2 and 3 those of rows; 4 and 7 keys or values.
//
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

#if defined(__AVX512VNNI__)

constexpr int64_t MOST_FEW_ROWS = 4;  // for which loading tiles costs more than it brings: a decode's query heads

// Four bytes of rows times 16 words: the same whole numbers as products of tiles give.
inline __m512i add_words(__m512i sum, uint32_t unsigned_bytes, __m512i words) {
  return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32((int)unsigned_bytes), words);
}

inline uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// Four strips at a time, whose pages are read from memory side by side.
template <int R>
inline void score_few(const AttentionArguments& a, const SplitRows& queries, const TileSegment& segment, float* scores) {
  constexpr int S = 4;
  const int64_t size = a.head_size;
  for (int64_t first = 0; first < segment.num_strips; first += S) {
    __m512i upper[R][S], lower[R][S], all_keys[S];
    const char* keys[S];
    int64_t strips[S];
#pragma GCC unroll 4
    for (int s = 0; s < S; s++) {
      strips[s] = first + s < segment.num_strips ? first + s : first;  // the first one once more where there is no other
      keys[s] = segment.strips[strips[s]].keys;
      prefetch_keys(a, segment, first + s + STRIPS_AHEAD);
      all_keys[s] = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) upper[r][s] = lower[r][s] = _mm512_setzero_si512();
    }
    for (int64_t i = 0; i < size; i += 4) {
      __m512i words[S];
#pragma GCC unroll 4
      for (int s = 0; s < S; s++) {
        words[s] = _mm512_loadu_si512(keys[s] + i * a.page_size);
        all_keys[s] = add_words(all_keys[s], 0x01010101, words[s]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        // Upper bytes have a sign, which the instruction does not know: 128 more each, and that many keys less.
        const uint32_t high = word_at(queries.upper + r * size + i) ^ 0x80808080;
        const uint32_t low = word_at(queries.lower + r * size + i);
#pragma GCC unroll 4
        for (int s = 0; s < S; s++) {
          upper[r][s] = add_words(upper[r][s], high, words[s]);
          lower[r][s] = add_words(lower[r][s], low, words[s]);
        }
      }
    }
#pragma GCC unroll 4
    for (int s = 0; s < S; s++) {
      const vf key_scale = load((const float*)segment.strips[strips[s]].key_scales);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const vi whole = (((vi)upper[r][s] - ((vi)all_keys[s] << 7)) << 8) + (vi)lower[r][s];
        store(scores + r * SCORE_STRIDE + strips[s] * STRIP,
              __builtin_convertvector(whole, vf) * (key_scale * queries.scales[r]));
      }
    }
  }
}

template <int R>
inline void gather_few(const AttentionArguments& a, const SplitRows& weights, const TileSegment& segment, float* sums) {
  constexpr int C = 4;  // vectors of the head at a time: sizes are whole chunks
  const int64_t size = a.head_size;
  for (int64_t column = 0; column < size; column += C * W) {
    __m512i upper[R][C], lower[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) upper[r][c] = lower[r][c] = _mm512_setzero_si512();
    for (int64_t strip = 0; strip < segment.num_strips; strip++) {
      if (column == 0) prefetch_values(a, segment, strip + STRIPS_AHEAD);
      for (int64_t t = 0; t < STRIP; t += 4) {
        const char* values = segment.strips[strip].values + t * size + 4 * column;
        __m512i words[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) words[c] = _mm512_loadu_si512(values + c * TILE_BYTES);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          const int64_t place = r * SEGMENT_TOKENS + strip * STRIP + t;
          const uint32_t high = word_at(weights.upper + place), low = word_at(weights.lower + place);
#pragma GCC unroll 4
          for (int c = 0; c < C; c++) {
            upper[r][c] = add_words(upper[r][c], high, words[c]);
            lower[r][c] = add_words(lower[r][c], low, words[c]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) {
        float* to = sums + r * size + column + c * W;
        const vi whole = ((vi)upper[r][c] << 8) + (vi)lower[r][c];
        store(to, load(to) + __builtin_convertvector(whole, vf) * weights.scales[r]);
      }
  }
}

template <typename Body>
inline void with_few_rows(int64_t num_rows, Body body) {
  if (num_rows == 1) body(std::integral_constant<int, 1>());
  if (num_rows == 2) body(std::integral_constant<int, 2>());
  if (num_rows == 3) body(std::integral_constant<int, 3>());
  if (num_rows == 4) body(std::integral_constant<int, 4>());
}

#else

constexpr int64_t MOST_FEW_ROWS = 0;

#endif

inline void set_attention_tiles(int64_t num_rows) {
  TileShapes shapes;
  for (int tile = 0; tile < NUM_TILES; tile++)
    shapes.set(tile, tile == 4 || tile == 7 ? TILE_ROWS : num_rows, TILE_BYTES);
  set_tiles(shapes);
}

// tile_rows: of tiles of equal shape; what the last one has too many is computed from whatever is there, and never looked at.
inline void attend_by_tiles(const AttentionArguments& a, const Run& run, int64_t kv_head, int64_t tile_rows) {
  const int64_t size = a.head_size, num_rows = run.num_tokens * a.group;
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
  for (int64_t start = run.start; start < run.stop;) {
    const int64_t stop = segment_end(start), count = stop - start;
    if (start > run.start) {
      find_tile_segment(a, run, kv_head, start, stop, segment);
      for (int64_t strip = 0; strip < STRIPS_AHEAD; strip++) prefetch_keys(a, segment, strip);
    }
    for (int64_t strip = 0; strip < STRIPS_AHEAD; strip++) prefetch_values(a, segment, strip);
    const bool is_few = num_rows <= MOST_FEW_ROWS;
#if defined(__AVX512VNNI__)
    with_few_rows(num_rows, [&](auto rows) { score_few<decltype(rows)::value>(a, queries, segment, scores); });
#endif
    for (int64_t row = 0; row < num_rows && !is_few; row += tile_rows)
      score_by_tiles(a, queries, row, num_rows - row < tile_rows ? num_rows - row : tile_rows, segment, scores);
    for (int64_t strip = 0; strip < segment.num_strips; strip++) {
      if (!is_few) prefetch_values(a, segment, strip + STRIPS_AHEAD);
      std::memcpy(value_scales + strip * STRIP, segment.strips[strip].value_scales, 4 * STRIP);
      if (!is_few) std::memcpy(values + strip * STRIP * size, segment.strips[strip].values, STRIP * size);
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
#if defined(__AVX512VNNI__)
    with_few_rows(num_rows, [&](auto rows) { gather_few<decltype(rows)::value>(a, weights, segment, sums); });
#endif
    for (int64_t row = 0; row < num_rows && !is_few; row += tile_rows)
      gather_by_tiles(weights, row, num_rows - row < tile_rows ? num_rows - row : tile_rows, count, values, size, sums);
    start = stop;
  }
  finish_item(a, run, kv_head, {sums, highest, totals});
}

inline void attention_tiles_item(const int64_t* arguments, int64_t item) {
  const AttentionArguments& a = *(const AttentionArguments*)arguments;
  if (a.kv_type != KV_INT8_TILES) return attention_item(arguments, item);
  // Setting shapes costs as much as thirty products.
  int64_t shaped = 0;
  each_head(a, item, [&](int64_t run, int64_t head) {
    const int64_t num_rows = a.runs[run].num_tokens * a.group, tile_rows = num_rows < TILE_ROWS ? num_rows : TILE_ROWS;
    if (num_rows > MOST_FEW_ROWS && shaped == 0) set_attention_tiles(shaped = tile_rows);
    attend_by_tiles(a, a.runs[run], head, tile_rows);
  });
  if (shaped) release_tiles();
}

}  // namespace CHAIRLIFT_ISA

#endif
