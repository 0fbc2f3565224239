// Attention of a few rows, a decode's query heads, over int8 pages for tiles: by vectors, since loading tiles costs more than
// so few rows bring.
//
// Knows nothing of requests. The same whole numbers as products of tiles give, so results are the same bit for bit.
//
// A core reads from memory fastest what lies in one straight run, and a page's keys of all heads do, and its values. So
// heads take turns: some pages for one head after the other, then the next pages. Head by head, each page's part stands
// alone, and reading takes 1.7 times as long.
#pragma once

#include "split_weights.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

#if defined(__AVX512VNNI__)

constexpr int64_t MOST_FEW_ROWS = 4;
constexpr int64_t FEW_HEADS = 4;  // that take turns
constexpr int FEW_STRIPS = 4;     // of tokens, whose pages are read side by side

// Four bytes of rows times 16 words.
inline __m512i add_words(__m512i sum, uint32_t unsigned_bytes, __m512i words) {
  return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32((int)unsigned_bytes), words);
}

inline uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// What is kept of one head's rows.
struct FewHead {
  QueryRows queries;
  SplitRows weights;
  float *sums, *scores, *highest, *totals;
  ValueScales* value_scales;
  int32_t* whole;  // sums of a segment: upper bytes [rows][size], then lower ones

  static int64_t num_floats(int64_t num_rows, int64_t size) {
    const int64_t floats = num_rows * (size + SCORE_STRIDE + 2 * size) + (int64_t)sizeof(ValueScales) / 4;
    const int64_t bytes = num_rows * (size + 2 * SEGMENT_TOKENS);
    return floats + bytes / 4 + MOST_FEW_ROWS * (3 + W);  // the last for the scalars
  }

  FewHead() = default;

  FewHead(float* memory, int64_t num_rows, int64_t size) : sums(memory) {
    scores = sums + num_rows * size, value_scales = (ValueScales*)(scores + num_rows * SCORE_STRIDE);
    whole = (int32_t*)(value_scales + 1);
    uint8_t* bytes = (uint8_t*)(whole + 2 * num_rows * size);
    queries.numbers = (int8_t*)bytes;
    weights.upper = bytes + num_rows * size, weights.lower = weights.upper + num_rows * SEGMENT_TOKENS;
    float* scalars = (float*)(weights.lower + num_rows * SEGMENT_TOKENS);
    queries.scales = scalars, weights.scales = scalars + MOST_FEW_ROWS;
    highest = scalars + 2 * MOST_FEW_ROWS, totals = scalars + 3 * MOST_FEW_ROWS;  // [rows][W]
  }
};

// Scores of strips [first, first + FEW_STRIPS); a head's part lies so many bytes behind the segment's.
template <int R>
inline void score_few(const AttentionArguments& a, const FewHead& head, const TileSegment& segment, int64_t first,
                      int64_t bytes) {
  constexpr int S = FEW_STRIPS;
  const int64_t size = a.head_size;
  __m512i sums[R][S], all_keys[S];
  const char* keys[S];
  int64_t strips[S];
#pragma GCC unroll 4
  for (int s = 0; s < S; s++) {
    strips[s] = first + s < segment.num_strips ? first + s : first;  // the first one once more where there is no other
    keys[s] = segment.strips[strips[s]].keys + bytes;
    all_keys[s] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) sums[r][s] = _mm512_setzero_si512();
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
      // Queries have a sign, which the instruction does not know: 128 more each, and that many keys less.
      const uint32_t query = word_at((const uint8_t*)head.queries.numbers + r * size + i) ^ 0x80808080;
#pragma GCC unroll 4
      for (int s = 0; s < S; s++) sums[r][s] = add_words(sums[r][s], query, words[s]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < S; s++) {
    const vf key_scale = load((const float*)(segment.strips[strips[s]].key_scales + bytes));
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      const vi whole = (vi)sums[r][s] - ((vi)all_keys[s] << 7);
      store(head.scores + r * SCORE_STRIDE + strips[s] * STRIP,
            __builtin_convertvector(whole, vf) * key_scale);
    }
  }
}

// Adds strips [first, end) to the segment's sums.
template <int R>
inline void gather_few(const AttentionArguments& a, const FewHead& head, const TileSegment& segment, int64_t first,
                       int64_t end, int64_t bytes) {
  constexpr int C = 4;  // vectors of the head at a time: sizes are whole chunks
  const int64_t size = a.head_size;
  for (int64_t column = 0; column < size; column += C * W) {
    __m512i upper[R][C], lower[R][C];
    int32_t* whole = head.whole + column;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) {
        upper[r][c] = _mm512_loadu_si512(whole + r * size + c * W);
        lower[r][c] = _mm512_loadu_si512(whole + (R + r) * size + c * W);
      }
    for (int64_t strip = first; strip < end; strip++)
      for (int64_t t = 0; t < STRIP; t += 4) {
        const char* values = segment.strips[strip].values + bytes + t * size + 4 * column;
        __m512i words[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) words[c] = _mm512_loadu_si512(values + c * TILE_BYTES);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          const int64_t place = r * SEGMENT_TOKENS + strip * STRIP + t;
          const uint32_t high = word_at(head.weights.upper + place), low = word_at(head.weights.lower + place);
#pragma GCC unroll 4
          for (int c = 0; c < C; c++) {
            upper[r][c] = add_words(upper[r][c], high, words[c]);
            lower[r][c] = add_words(lower[r][c], low, words[c]);
          }
        }
      }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) {
        _mm512_storeu_si512(whole + r * size + c * W, upper[r][c]);
        _mm512_storeu_si512(whole + (R + r) * size + c * W, lower[r][c]);
      }
  }
}

// Weights of a segment's scores, and room for its sums.
inline void weigh_few(const AttentionArguments& a, const Run& run, const FewHead& head, const TileSegment& segment,
                      int64_t start, int64_t count, int64_t bytes) {
  const int64_t size = a.head_size, num_rows = run.num_tokens * a.group;
  take_value_scales(segment, count, bytes, *head.value_scales);
  RowPart parts[MOST_FEW_ROWS];
  for (int64_t row = 0; row < num_rows; row++) {
    const int64_t position = run.first_position + row / a.group;
    const int64_t low = a.window > 0 ? position - a.window + 1 - start : 0;
    parts[row] = raise_best(head.scores + row * SCORE_STRIDE, head.queries.scales[row], low, position + 1 - start, count,
                            *head.value_scales, {head.sums + row * size, head.highest + row, head.totals + row * W}, size);
  }
  for (int64_t row = 0; row < num_rows; row++)
    split_weights(head.scores + row * SCORE_STRIDE, parts[row], count, *head.value_scales, head.totals + row * W,
                  head.weights, row);
  std::memset(head.whole, 0, 2 * num_rows * size * 4);
}

template <int R>
inline void attend_few(const AttentionArguments& a, const Run& run, int64_t first_head, int64_t num_heads) {
  const int64_t size = a.head_size, part_bytes = a.page_size * kv_token_bytes(a.kv_type, size);
  const int64_t head_floats = FewHead::num_floats(R, size);
  float* memory = scratch(num_heads * head_floats);
  FewHead heads[FEW_HEADS];
  TileSegment segment;
  const auto each_head = [&](auto body) {
    for (int64_t h = 0; h < num_heads; h++) body(heads[h], h * part_bytes);
  };
  // Some parts of pages one after the other, as they lie; as many at once as a head reads meanwhile.
  const auto prefetch_parts = [&](int64_t first, int64_t turn, auto prefetch_part) {
    for (int64_t part = turn * FEW_STRIPS; part < (turn + 1) * FEW_STRIPS; part++) {
      const int64_t strip = first + part / num_heads;
      if (strip < segment.num_strips) prefetch_part(segment.strips[strip], part % num_heads * part_bytes);
    }
  };
  const auto prefetch_strips = [&](int64_t first, auto prefetch_part) {
    for (int64_t turn = 0; turn < num_heads; turn++) prefetch_parts(first, turn, prefetch_part);
  };
  const auto keys = [&](const TileSegment::Strip& strip, int64_t bytes) { prefetch_keys(a, strip, bytes); };
  const auto values = [&](const TileSegment::Strip& strip, int64_t bytes) { prefetch_values(a, strip, bytes); };

  find_tile_segment(a, run, first_head, run.start, segment_end(a, run, run.start), segment);
  prefetch_strips(0, keys);
  for (int64_t h = 0; h < num_heads; h++) {
    heads[h] = FewHead(memory + h * head_floats, R, size);
    for (int64_t row = 0; row < R; row++) {
      const int64_t query_head = (first_head + h) * a.group + row % a.group;
      const float* q = a.q + row_of(run, row / a.group) * a.q_stride + query_head * size;
      round_query(q, (float)a.scale, size, heads[h].queries, row);
      heads[h].highest[row] = LOWEST;
      store(heads[h].totals + row * W, vf{});
    }
    for (int64_t i = 0; i < R * size; i++) heads[h].sums[i] = 0;
  }
  for (int64_t start = run.start; start < run.stop;) {
    const int64_t stop = segment_end(a, run, start);
    if (start > run.start) {
      find_tile_segment(a, run, first_head, start, stop, segment);
      prefetch_strips(0, keys);
    }
    for (int64_t strip = 0; strip < segment.num_strips; strip += FEW_STRIPS) {
      for (int64_t h = 0; h < num_heads; h++) {
        prefetch_parts(strip + FEW_STRIPS, h, keys);
        score_few<R>(a, heads[h], segment, strip, h * part_bytes);
      }
    }
    prefetch_strips(0, values);
    each_head([&](const FewHead& head, int64_t bytes) { weigh_few(a, run, head, segment, start, stop - start, bytes); });
    for (int64_t strip = 0; strip < segment.num_strips; strip += FEW_STRIPS) {
      const int64_t end = strip + FEW_STRIPS < segment.num_strips ? strip + FEW_STRIPS : segment.num_strips;
      for (int64_t h = 0; h < num_heads; h++) {
        prefetch_parts(strip + FEW_STRIPS, h, values);
        gather_few<R>(a, heads[h], segment, strip, end, h * part_bytes);
      }
    }
    each_head([&](const FewHead& head, int64_t) {
      for (int64_t row = 0; row < R; row++)
        for (int64_t i = 0; i < size; i += W) {
          vi upper, lower;
          std::memcpy(&upper, head.whole + row * size + i, sizeof upper);
          std::memcpy(&lower, head.whole + (R + row) * size + i, sizeof lower);
          float* to = head.sums + row * size + i;
          store(to, load(to) + __builtin_convertvector((upper << 8) + lower, vf) * head.weights.scales[row]);
        }
    });
    start = stop;
  }
  for (int64_t h = 0; h < num_heads; h++) {
    sum_lanes(heads[h].totals, R);
    finish_item(a, run, first_head + h, {heads[h].sums, heads[h].highest, heads[h].totals});
  }
}

// Whether a run has so few rows; if so, heads [first_head, end_head) are computed.
inline bool attend_if_few(const AttentionArguments& a, const Run& run, int64_t first_head, int64_t end_head) {
  const int64_t num_rows = run.num_tokens * a.group;
  if (num_rows > MOST_FEW_ROWS) return false;
  for (int64_t head = first_head; head < end_head; head += FEW_HEADS) {
    const int64_t num_heads = end_head - head < FEW_HEADS ? end_head - head : FEW_HEADS;
    switch (num_rows) {
      case 4: attend_few<4>(a, run, head, num_heads); break;
      case 3: attend_few<3>(a, run, head, num_heads); break;
      case 2: attend_few<2>(a, run, head, num_heads); break;
      default: attend_few<1>(a, run, head, num_heads);
    }
  }
  return true;
}

#else

inline bool attend_if_few(const AttentionArguments&, const Run&, int64_t, int64_t) { return false; }

#endif

}  // namespace CHAIRLIFT_ISA

#endif
