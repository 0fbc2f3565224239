// Paged attention for decodes and prefill chunks alike, with a softmax that is updated segment by segment.
//
// Knows nothing of requests: an item is a run of query tokens, a part of their context, and a key-value head; or all of
// these heads, which lie side by side in memory, where there are runs enough for all threads.
//
//   keys      0 .......................... 1,024 .......... 2,048 ....... the run's first token ... its last token
//             | part 0                     | part 1         | part 2                                             |
//
// All query heads that share the key-value head, of all tokens of the run, are the rows of two small matrix products
// per page: scores = queries x keys, and sums += weights x values. Contexts of more than one part are put together by
// merge_item (as in "Flash-Decoding", Dao et al. 2023), so that few long contexts keep all threads busy; and so
// are pages that several decodes begin with, which a run of their rows reads once. Where parts begin at fixed positions
// and nothing is shared, a row's sums are the same whatever is in its batch and however its prompt was cut. Tokens behind
// the run are never read, not even to be multiplied by zero: their memory may hold what is not a number.
#pragma once

#include <type_traits>

#include "rows.h"

namespace CHAIRLIFT_ISA {

constexpr int64_t SEGMENT_TOKENS = 256;               // scored before their weights are used
constexpr int64_t SCORE_STRIDE = SEGMENT_TOKENS + 16;  // scores are written and read by vectors
constexpr float LOWEST = -3.0e38f;

struct Run {
  int64_t first_row, num_tokens, first_position;
  const int32_t* pages;
  int64_t start, stop;  // the part of the context, whole pages but for the end
  int64_t partial;      // where its sums go in the memory of partial results, in numbers; -1: the run's only part
  const int32_t* rows;  // one for each token; null: they follow each other. All see everything before the first position
};

inline int64_t row_of(const Run& run, int64_t token) { return run.rows ? run.rows[token] : run.first_row + token; }

struct AttentionArguments {
  const Run* runs;
  const float* q;
  float* out;
  float* partials;  // per run, head and row: d sums, highest score, total weight
  char* kv;
  int64_t q_stride, out_stride, num_kv_heads, group, head_size, page_size, values_offset, kv_type, window;
  double scale;
  Rounded rounded;
  int64_t num_rows;  // of all runs
  int64_t item_heads;  // key-value heads of a run that an item computes
};

// Round one head's numbers of a row, as if the whole row were rounded: a head is whole blocks.
inline void round_head(const float* x, const Rounded& to, int64_t row, int64_t num_rows, int64_t first, int64_t size,
                       int64_t depth) {
  const int64_t skipped = first / BLOCK * num_rows, number_bytes = to.kind == INT8 ? 1 : 2;
  const Rounded part = {to.kind, (char*)to.numbers + (row * depth + first) * number_bytes, to.scales + skipped + row,
                        to.sums + skipped + row};
  round_row(x, part, 0, num_rows, size);
}

inline vf load_kv(const float* from) { return load(from); }
inline vf load_kv(const uint16_t* from) { return load_bfloat(from); }
inline vf load_kv(const int8_t* from) { return load_int8(from); }

// Neighbouring tokens of one page.
struct Page {
  const char *keys, *values;  // of the whole page, and of the first of the tokens
  int64_t count;
  int64_t place;  // of the first one within the segment
};

// Up to W neighbouring tokens of one page.
struct Strip {
  const char* keys;
  const char* scales;
  int64_t place;
};

// scores[r][t] = queries[r] . keys[t] for R rows and S strips. Where a strip has fewer than W tokens, what follows in
// memory stands in for the rest, and its scores are overwritten by the next strip or never looked at.
template <int R, int S, typename Number>
inline void score_tile(const float* queries, const Strip* const (&strips)[S], int64_t key_stride, int64_t size,
                       float* scores) {
  vf sums[R][S];
  const Number* keys[S];
#pragma GCC unroll 8
  for (int s = 0; s < S; s++) keys[s] = (const Number*)strips[s]->keys;
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int s = 0; s < S; s++) sums[r][s] = vf{};
  for (int64_t i = 0; i < size; i++) {
    // The fewer of queries and keys stay in registers beside the sums.
    if constexpr (R < S) {
      vf query[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) query[r] = all(queries[r * size + i]);
#pragma GCC unroll 8
      for (int s = 0; s < S; s++) {
        const vf key = load_kv(keys[s]);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sums[r][s] += key * query[r];
      }
    } else {
      vf key[S];
#pragma GCC unroll 8
      for (int s = 0; s < S; s++) key[s] = load_kv(keys[s]);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const vf query = all(queries[r * size + i]);
#pragma GCC unroll 8
        for (int s = 0; s < S; s++) sums[r][s] += key[s] * query;
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < S; s++) keys[s] += key_stride;
  }
#pragma GCC unroll 8
  for (int s = 0; s < S; s++) {
    const vf scale = sizeof(Number) == 1 ? load((const float*)strips[s]->scales) : all(1.0f);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
      store(scores + r * SCORE_STRIDE + strips[s]->place, sizeof(Number) == 1 ? sums[r][s] * scale : sums[r][s]);
  }
}

template <int R, typename Number>
inline void score_rows(const float* queries, const Strip* strips, int64_t num_strips, int64_t key_stride, int64_t size,
                       float* scores) {
  constexpr int S = R == 1 ? 8 : R <= 3 ? 4 : 2;
  for (int64_t first = 0; first < num_strips; first += S) {
    const Strip* some[S];  // the last one again and again where there are fewer
#pragma GCC unroll 8
    for (int64_t s = 0; s < S; s++) some[s] = strips + (first + s < num_strips ? first + s : num_strips - 1);
    score_tile<R, S, Number>(queries, some, key_stride, size, scores);
  }
}

// sums[r] += sum over t of weights[r][t] values[t], for R rows and C vectors of the head
template <int R, int C, typename Number>
inline void gather_tile(const float* weights, const Page* pages, int64_t num_pages, int64_t size, float* sums,
                        int64_t column, bool is_first) {
  vf total[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) total[r][c] = load(sums + r * size + column + c * W);
  for (const Page* page = pages; page < pages + num_pages; page++) {
    if (is_first && page + 1 < pages + num_pages) prefetch(page[1].values, page[1].count * size * sizeof(Number));
    const Number* values = (const Number*)page->values + column;
    const float* weight_of = weights + page->place;
    for (int64_t t = 0; t < page->count; t++, values += size, weight_of++) {
      if constexpr (R < C) {
        vf weight[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) weight[r] = all(weight_of[r * SCORE_STRIDE]);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
          const vf value = load_kv(values + c * W);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) total[r][c] += value * weight[r];
        }
      } else {
        vf value[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) value[c] = load_kv(values + c * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          const vf weight = all(weight_of[r * SCORE_STRIDE]);
#pragma GCC unroll 8
          for (int c = 0; c < C; c++) total[r][c] += value[c] * weight;
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(sums + r * size + column + c * W, total[r][c]);
}

template <int R, typename Number>
inline void gather_rows(const float* weights, const Page* pages, int64_t num_pages, int64_t size, float* sums,
                        bool is_first) {
  constexpr int C = R == 1 ? 8 : R <= 3 ? 4 : 2;
  int64_t column = 0;
  for (; column + C * W <= size; column += C * W)
    gather_tile<R, C, Number>(weights, pages, num_pages, size, sums, column, is_first && column == 0);
  for (; column < size; column += W) gather_tile<R, 1, Number>(weights, pages, num_pages, size, sums, column, is_first && column == 0);
}

// Calls body with 6 rows at a time, and with 3, 2 or 1 for the rest.
template <typename Body>
inline void by_rows(int64_t num_rows, Body body) {
  int64_t row = 0;
  for (; row + 6 <= num_rows; row += 6) body(std::integral_constant<int, 6>(), row);
  for (; row + 3 <= num_rows; row += 3) body(std::integral_constant<int, 3>(), row);
  if (num_rows - row == 2) body(std::integral_constant<int, 2>(), row);
  if (num_rows - row == 1) body(std::integral_constant<int, 1>(), row);
}

constexpr int64_t STRIPS_AT_ONCE = 8;  // read from memory once for all rows

// The tokens of a context that are scored before their weights are used, and where one head's numbers of them lie.
struct Segment {
  Page pages[SEGMENT_TOKENS];
  Strip strips[SEGMENT_TOKENS];
  float value_scales[SCORE_STRIDE];
  int64_t num_pages, num_strips;
};

template <typename Number>
inline void score(const AttentionArguments& a, const float* queries, int64_t num_rows, const Segment& segment,
                  float* scores) {
  const int64_t size = a.head_size;
  // Each page is a piece of memory of its own, so only we know what is read next.
  const Page *next = segment.pages, *end = next + segment.num_pages;
  const auto prefetch_until = [&](int64_t place) {
    for (; next < end && next->place < place; next++) prefetch(next->keys, a.page_size * size * sizeof(Number));
  };
  for (int64_t first = 0; first < segment.num_strips; first += STRIPS_AT_ONCE) {
    const int64_t rest = segment.num_strips - first, count = rest < STRIPS_AT_ONCE ? rest : STRIPS_AT_ONCE;
    const Strip* strips = segment.strips + first;
    prefetch_until(rest < 2 * STRIPS_AT_ONCE ? SEGMENT_TOKENS : strips[2 * STRIPS_AT_ONCE - 1].place + 1);
    by_rows(num_rows, [&](auto rows, int64_t row) {
      score_rows<decltype(rows)::value, Number>(queries + row * size, strips, count, a.page_size, size,
                                                scores + row * SCORE_STRIDE);
    });
  }
  prefetch(segment.pages->values, segment.pages->count * size * sizeof(Number));
}

template <typename Number>
inline void gather(const AttentionArguments& a, const float* weights, int64_t num_rows, const Segment& segment,
                   float* sums) {
  const int64_t size = a.head_size;
  by_rows(num_rows, [&](auto rows, int64_t row) {
    gather_rows<decltype(rows)::value, Number>(weights + row * SCORE_STRIDE, segment.pages, segment.num_pages, size,
                                               sums + row * size, row == 0);
  });
}

// Turn one row's scores into weights, 0 outside [low, high), and rescale what the row has summed so far. Weights are
// multiplied by their values' scales, if there are any.
inline void weigh(float* scores, int64_t low, int64_t high, int64_t count, const float* value_scales, float* highest,
                  float* total, float* sums, int64_t size) {
  low = low < 0 ? 0 : low > count ? count : low;
  high = high < low ? low : high > count ? count : high;
  const int64_t padded = (count + W - 1) / W * W;
  for (int64_t t = 0; t < low; t++) scores[t] = LOWEST;
  for (int64_t t = high; t < padded; t++) scores[t] = LOWEST;
  float best = *highest;  // passes by what is not a number, whose weight will be none either
  vf peak = all(best);
  for (int64_t t = 0; t < padded; t += W) peak = max(peak, load(scores + t));
  best = max(peak);
  vf sum_of_weights = vf{};
  for (int64_t t = 0; t < padded; t += W) {
    const vf score = load(scores + t);
    const vf weight = score <= LOWEST ? vf{} : exponential(score - best);
    store(scores + t, value_scales ? weight * load(value_scales + t) : weight);
    sum_of_weights += weight;
  }
  const float shrink = *highest == best ? 1.0f : std::exp(*highest - best);
  *total = *total * shrink + sum(sum_of_weights);
  if (shrink != 1.0f)
    for (int64_t i = 0; i < size; i += W) store(sums + i, load(sums + i) * shrink);
  *highest = best;
}

// Look up where the tokens [start, stop) lie.
inline void find_segment(const AttentionArguments& a, const Run& run, int64_t kv_head, int64_t start, int64_t stop,
                         Segment& segment) {
  const int64_t number_bytes = kv_number_bytes(a.kv_type), scales_offset = a.page_size * a.head_size * number_bytes;
  const int64_t part_bytes = a.page_size * kv_token_bytes(a.kv_type, a.head_size);
  segment.num_pages = segment.num_strips = 0;
  for (int64_t token = start; token < stop;) {
    const int64_t first = token % a.page_size, rest = stop - token;
    const int64_t count = a.page_size - first < rest ? a.page_size - first : rest;
    const char* keys = a.kv + (run.pages[token / a.page_size] * a.num_kv_heads + kv_head) * part_bytes;
    const char *scales = keys + scales_offset, *values = keys + a.values_offset;
    segment.pages[segment.num_pages++] = {keys, values + first * a.head_size * number_bytes, count, token - start};
    for (int64_t t = first; t < first + count; t += W)
      segment.strips[segment.num_strips++] = {keys + t * number_bytes, scales + 4 * t, token - start + t - first};
    if (a.kv_type == KV_INT8)
      std::memcpy(segment.value_scales + token - start, scales + a.values_offset + 4 * first, 4 * count);
    token += count;
  }
}

// What an item has computed, per row: d sums, highest score, total weight.
struct ItemSums {
  const float *sums, *highest, *totals;
};

// Write an item's rows to where they go: to the partial results, or divided by their weights to the output.
inline void finish_item(const AttentionArguments& a, const Run& run, int64_t kv_head, const ItemSums& item) {
  const int64_t size = a.head_size, num_rows = run.num_tokens * a.group;
  if (run.partial >= 0) {
    float* to = a.partials + run.partial + kv_head * num_rows * (size + 2);
    for (int64_t row = 0; row < num_rows; row++, to += size + 2) {
      std::memcpy(to, item.sums + row * size, 4 * size);
      to[size] = item.highest[row], to[size + 1] = item.totals[row];
    }
    return;
  }
  for (int64_t row = 0; row < num_rows; row++) {
    const int64_t token = row / a.group, head = kv_head * a.group + row % a.group;
    float* to = a.out + (run.first_row + token) * a.out_stride + head * size;
    for (int64_t i = 0; i < size; i++) to[i] = item.sums[row * size + i] / item.totals[row];
    if (a.rounded.kind)
      round_head(to, a.rounded, run.first_row + token, a.num_rows, head * size, size, a.num_kv_heads * a.group * size);
  }
}

inline void attend(const AttentionArguments& a, const Run& run, int64_t kv_head) {
  const int64_t size = a.head_size, num_rows = run.num_tokens * a.group;
  float* queries = scratch(num_rows * (2 * size + SCORE_STRIDE + 2));
  float *sums = queries + num_rows * size, *scores = sums + num_rows * size;
  float *highest = scores + num_rows * SCORE_STRIDE, *totals = highest + num_rows;
  for (int64_t token = 0; token < run.num_tokens; token++) {
    const float* q = a.q + row_of(run, token) * a.q_stride + kv_head * a.group * size;
    for (int64_t i = 0; i < a.group * size; i++) queries[token * a.group * size + i] = q[i] * (float)a.scale;
  }
  for (int64_t i = 0; i < num_rows * size; i++) sums[i] = 0;
  for (int64_t row = 0; row < num_rows; row++) highest[row] = LOWEST, totals[row] = 0;
  const int64_t whole_pages = SEGMENT_TOKENS / a.page_size * a.page_size;
  const int64_t segment_tokens = whole_pages ? whole_pages : SEGMENT_TOKENS;
  Segment segment;
  const float* value_scales = a.kv_type == KV_INT8 ? segment.value_scales : nullptr;
  for (int64_t start = run.start; start < run.stop;) {
    // Segments begin at fixed positions too, even where a window begins within one.
    const int64_t next_segment = (start / segment_tokens + 1) * segment_tokens;
    const int64_t stop = next_segment < run.stop ? next_segment : run.stop;
    find_segment(a, run, kv_head, start, stop, segment);
    switch (a.kv_type) {
      case KV_FLOAT32: score<float>(a, queries, num_rows, segment, scores); break;
      case KV_BFLOAT16: score<uint16_t>(a, queries, num_rows, segment, scores); break;
      default: score<int8_t>(a, queries, num_rows, segment, scores);
    }
    for (int64_t row = 0; row < num_rows; row++) {
      const int64_t position = run.first_position + row / a.group;
      const int64_t low = a.window > 0 ? position - a.window + 1 - start : 0;
      weigh(scores + row * SCORE_STRIDE, low, position + 1 - start, stop - start, value_scales, highest + row,
            totals + row, sums + row * size, size);
    }
    switch (a.kv_type) {
      case KV_FLOAT32: gather<float>(a, scores, num_rows, segment, sums); break;
      case KV_BFLOAT16: gather<uint16_t>(a, scores, num_rows, segment, sums); break;
      default: gather<int8_t>(a, scores, num_rows, segment, sums);
    }
    start = stop;
  }
  finish_item(a, run, kv_head, {sums, highest, totals});
}

// Calls body(run, key-value head) for what an item computes.
template <typename Body>
inline void each_head(const AttentionArguments& a, int64_t item, Body body) {
  const int64_t num_groups = a.num_kv_heads / a.item_heads, first_head = item % num_groups * a.item_heads;
  for (int64_t head = first_head; head < first_head + a.item_heads; head++) body(item / num_groups, head);
}

inline void attention_item(const int64_t* arguments, int64_t item) {
  const AttentionArguments& a = *(const AttentionArguments*)arguments;
  each_head(a, item, [&](int64_t run, int64_t head) { attend(a, a.runs[run], head); });
}

// What one item computed of a merge's rows: where the first row's sums lie of the first head, and how far heads lie apart.
struct Part {
  int64_t partial, head_stride;
};

struct Merge {
  int64_t first_row, num_tokens, num_parts;
  const Part* parts;
};

struct MergeArguments {
  const Merge* merges;
  const float* partials;
  float* out;
  int64_t out_stride, num_kv_heads, group, head_size;
  Rounded rounded;
  int64_t num_rows;
};

// Put the parts of one run and head together: each part's sums shrink by how far its best score lies below the best.
inline void merge_item(const int64_t* arguments, int64_t item) {
  const MergeArguments& a = *(const MergeArguments*)arguments;
  const Merge& merge = a.merges[item / a.num_kv_heads];
  const int64_t kv_head = item % a.num_kv_heads, size = a.head_size, num_rows = merge.num_tokens * a.group;
  for (int64_t row = 0; row < num_rows; row++) {
    const auto part = [&](int64_t i) {
      return a.partials + merge.parts[i].partial + kv_head * merge.parts[i].head_stride + row * (size + 2);
    };
    const int64_t token = row / a.group, head = kv_head * a.group + row % a.group;
    float* to = a.out + (merge.first_row + token) * a.out_stride + head * size;
    float best = LOWEST, total = 0;
    for (int64_t i = 0; i < merge.num_parts; i++) {
      const float highest = part(i)[size];
      best = highest > best ? highest : best;
    }
    for (int64_t i = 0; i < size; i++) to[i] = 0;
    for (int64_t i = 0; i < merge.num_parts; i++) {
      const float* from = part(i);
      const float shrink = std::exp(from[size] - best);
      total += from[size + 1] * shrink;
      for (int64_t j = 0; j < size; j += W) store(to + j, load(to + j) + load(from + j) * shrink);
    }
    for (int64_t i = 0; i < size; i++) to[i] /= total;
    if (a.rounded.kind)
      round_head(to, a.rounded, merge.first_row + token, a.num_rows, head * size, size,
                 a.num_kv_heads * a.group * size);
  }
}

}  // namespace CHAIRLIFT_ISA
