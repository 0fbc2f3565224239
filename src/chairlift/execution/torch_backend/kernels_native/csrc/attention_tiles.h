// Attention over int8 pages in tiles; what an item is, and how parts are put together, is as in attention.h.
//
// Knows nothing of requests. Both products are of whole numbers, so that pages go into tiles as they lie in memory:
//   scores[row][t] = q[row] . k[t]    q in 8 bits with a scale per row, as keys are
//   sums[row] += p[row][t] v[t]       p, the weights times their values' scales, in 16 bits with a scale per row and
//                                     segment of 256 tokens: its upper and lower byte a product each
// Sums of whole numbers are exact, so a row's result is the same whatever rows are in its tile. 65,535 * 127 * 256 is less
// than 2**31.
#pragma once

#include "attention_few.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

typedef int32_t AttentionSums[TILE_ROWS][W];

inline vi whole_sums(const AttentionSums& upper, const AttentionSums& lower, int64_t row) {
  vi high, low;
  std::memcpy(&high, upper[row], sizeof high);
  std::memcpy(&low, lower[row], sizeof low);
  return (high << 8) + low;
}

// Scores of up to 16 rows and strips [begin, end), but for the queries' scales. Tiles: 0 sums, 2 rows, 4 keys.
inline void score_by_tiles(const AttentionArguments& a, const QueryRows& queries, int64_t first_row, int64_t num_rows,
                           const TileSegment& segment, int64_t begin, int64_t end, float* scores) {
  const int64_t size = a.head_size, num_chunks = size / CHUNK;
  alignas(64) AttentionSums sums[2];
  const auto load_rows = [&](int64_t chunk) {
    load_tile<2>(queries.numbers + first_row * size + chunk * CHUNK, size);
  };
  const auto start = [&](int64_t strip) {
    clear_tile<0>();
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
      if (num_chunks > 1) load_rows(chunk);
      load_tile<4>(segment.strips[strip].keys + chunk * (CHUNK / 4) * a.page_size * 4, a.page_size * 4);
      multiply_bytes<0, 2, 4>();
    }
    store_tile<0>(sums[strip % 2], TILE_BYTES);
  };
  if (num_chunks == 1) load_rows(0);
  start(begin);
  for (int64_t strip = begin; strip < end; strip++) {
    if (strip + 1 < end) start(strip + 1);
    if (first_row == 0 && strip + STRIPS_AHEAD < segment.num_strips)
      prefetch_keys(a, segment.strips[strip + STRIPS_AHEAD]);
    const vf key_scale = load((const float*)segment.strips[strip].key_scales);
    float* to = scores + strip * STRIP;
    for (int64_t row = 0; row < num_rows; row++) {
      vi whole;
      std::memcpy(&whole, sums[strip % 2][row], sizeof whole);
      store(to + row * SCORE_STRIDE, __builtin_convertvector(whole, vf) * key_scale);
    }
  }
}

// Sums of up to 16 rows over the tokens [begin, end), whole chunks; for 32 numbers of the head at a time. Tiles: 0 and 1, 5
// and 6 sums of upper and lower bytes; 2 and 3 those of weights; 4 and 7 values.
inline void gather_by_tiles(const SplitRows& weights, int64_t num_rows, int64_t begin, int64_t end, const char* values,
                            int64_t size, float* sums) {
  alignas(64) AttentionSums whole[4];
  for (int64_t column = 0; column < size; column += 2 * W) {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<5>();
    clear_tile<6>();
    for (int64_t token = begin; token < end; token += CHUNK) {
      const char* from = values + token * size + 4 * column;
      load_tile<2>(weights.upper + token, SEGMENT_TOKENS);
      load_tile<3>(weights.lower + token, SEGMENT_TOKENS);
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
      float* to = sums + row * size + column;
      for (int half = 0; half < 2; half++)
        store(to + half * W,
              load(to + half * W) + __builtin_convertvector(whole_sums(whole[2 * half], whole[2 * half + 1], row), vf) *
                                        weights.scales[row]);
    }
  }
}

inline void set_attention_tiles(int64_t num_rows) {
  TileShapes shapes;
  for (int tile = 0; tile < NUM_TILES; tile++)
    shapes.set(tile, tile == 4 || tile == 7 ? TILE_ROWS : num_rows, TILE_BYTES);
  set_tiles(shapes);
}

// What rows see of a segment, as seen from its start.
struct Seen {
  int64_t low, high;
};

inline Seen seen_by(const AttentionArguments& a, const Run& run, int64_t row, int64_t start) {
  const int64_t position = run.first_position + row / a.group;
  return {a.window > 0 ? position - a.window + 1 - start : 0, position + 1 - start};
}

// tile_rows: of tiles of equal shape; what the last one has too many is computed from whatever is there, and never looked at.
inline void attend_by_tiles(const AttentionArguments& a, const Run& run, int64_t kv_head, int64_t tile_rows) {
  const int64_t size = a.head_size, num_rows = run.num_tokens * a.group;
  const int64_t padded_rows = (num_rows + tile_rows - 1) / tile_rows * tile_rows;
  float* sums = scratch(num_rows * (size + 1 + W) + padded_rows + tile_rows * (SCORE_STRIDE + 1) +
                        (padded_rows * size + tile_rows * 2 * SEGMENT_TOKENS + SEGMENT_TOKENS * size) / 4 + 64);
  float *highest = sums + num_rows * size, *totals = highest + num_rows, *scores = totals + num_rows * W;
  QueryRows queries;
  SplitRows weights;
  queries.scales = scores + tile_rows * SCORE_STRIDE, weights.scales = queries.scales + padded_rows;
  char* bytes = (char*)(weights.scales + tile_rows);
  bytes += -(intptr_t)bytes & 63;
  queries.numbers = (int8_t*)bytes;
  weights.upper = (uint8_t*)bytes + padded_rows * size, weights.lower = weights.upper + tile_rows * SEGMENT_TOKENS;
  char* values = (char*)weights.lower + tile_rows * SEGMENT_TOKENS;

  TileSegment segment;
  ValueScales value_scales;
  const auto each_of_the_first = [&](auto prefetch_strip) {
    for (int64_t strip = 0; strip < STRIPS_AHEAD && strip < segment.num_strips; strip++)
      prefetch_strip(a, segment.strips[strip], 0);
  };
  find_tile_segment(a, run, kv_head, run.start, segment_end(a, run, run.start), segment);
  each_of_the_first(prefetch_keys);

  for (int64_t row = 0; row < num_rows; row++) {
    const float* q = a.q + row_of(run, row / a.group) * a.q_stride + (kv_head * a.group + row % a.group) * size;
    round_query(q, (float)a.scale, size, queries, row);
    highest[row] = LOWEST;
    store(totals + row * W, vf{});
  }
  for (int64_t i = 0; i < num_rows * size; i++) sums[i] = 0;
  for (int64_t start = run.start; start < run.stop;) {
    const int64_t stop = segment_end(a, run, start), count = stop - start;
    if (start > run.start) {
      find_tile_segment(a, run, kv_head, start, stop, segment);
      each_of_the_first(prefetch_keys);
    }
    each_of_the_first(prefetch_values);
    for (int64_t first_row = 0; first_row < num_rows; first_row += tile_rows) {
      const int64_t rest = num_rows - first_row, count_rows = rest < tile_rows ? rest : tile_rows;
      // Later rows see later tokens: the first row and the last one say what all of them see.
      int64_t low = seen_by(a, run, first_row, start).low, high = seen_by(a, run, first_row + count_rows - 1, start).high;
      low = low < 0 ? 0 : low;
      high = high < count ? high : count;
      if (low < high)
        score_by_tiles(a, queries, first_row, count_rows, segment, low / STRIP, (high + STRIP - 1) / STRIP, scores);
      if (first_row == 0) {
        for (int64_t strip = 0; strip < segment.num_strips; strip++) {
          if (strip + STRIPS_AHEAD < segment.num_strips) prefetch_values(a, segment.strips[strip + STRIPS_AHEAD]);
          std::memcpy(values + strip * STRIP * size, segment.strips[strip].values, STRIP * size);
        }
        take_value_scales(segment, count, 0, value_scales);
      }
      if (low >= high) continue;
      RowPart parts[TILE_ROWS];
      for (int64_t i = 0; i < count_rows; i++) {
        const int64_t row = first_row + i;
        const Seen seen = seen_by(a, run, row, start);
        parts[i] = raise_best(scores + i * SCORE_STRIDE, queries.scales[row], seen.low, seen.high, count, value_scales,
                              {sums + row * size, highest + row, totals + row * W}, size);
      }
      for (int64_t i = 0; i < count_rows; i++)
        split_weights(scores + i * SCORE_STRIDE, parts[i], count, value_scales, totals + (first_row + i) * W, weights, i);
      gather_by_tiles(weights, count_rows, low / CHUNK * CHUNK, high, values, size, sums + first_row * size);
    }
    start = stop;
  }
  sum_lanes(totals, num_rows);
  finish_item(a, run, kv_head, {sums, highest, totals});
}

inline void attention_tiles_item(const int64_t* arguments, int64_t item) {
  const AttentionArguments& a = *(const AttentionArguments*)arguments;
  if (a.kv_type != KV_INT8_TILES) return attention_item(arguments, item);
  const int64_t num_groups = a.num_kv_heads / a.item_heads, first_head = item % num_groups * a.item_heads;
  const Run& run = a.runs[item / num_groups];
  if (attend_if_few(a, run, first_head, first_head + a.item_heads)) return;
  const int64_t num_rows = run.num_tokens * a.group, tile_rows = num_rows < TILE_ROWS ? num_rows : TILE_ROWS;
  set_attention_tiles(tile_rows);
  for (int64_t head = first_head; head < first_head + a.item_heads; head++) attend_by_tiles(a, run, head, tile_rows);
  release_tiles();
}

}  // namespace CHAIRLIFT_ISA

#endif
