// Paged attention for decodes and prefill chunks alike, with a softmax that is updated segment by segment.
//
// Knows nothing of requests: an item is a run of query tokens, a part of their context, and a key-value head.
//
//   keys      0 ....... SPLIT_TOKENS ....... 2 SPLIT_TOKENS ....... the run's first token ... its last token
//             | part 0             | part 1               | part 2                                      |
//
// All query heads that share the key-value head, of all tokens of the run, are the rows of two small matrix products
// per page: scores = queries x keys, and sums += weights x values. Contexts of more than one part are put together by
// merge_item (as in "Flash-Decoding", Dao et al. 2023), so that few long contexts keep all threads busy. Parts begin at
// fixed positions: a row's sums are the same whatever is in its batch and however its prompt was cut. Tokens behind the
// run are never read, not even to be multiplied by zero: their memory may hold what is not a number.
#pragma once

#include "rows.h"

namespace CHAIRLIFT_ISA {

constexpr int64_t SEGMENT_TOKENS = 256;               // scored before their weights are used
constexpr int64_t SCORE_STRIDE = SEGMENT_TOKENS + 16;  // scores are written by fours, and read by vectors
constexpr int64_t MAX_RUN_ROWS = 48;     // query heads times tokens; more only if a single token has them
constexpr float LOWEST = -3.0e38f;

struct Run {
  int64_t first_row, num_tokens, first_position;
  const int32_t* pages;
  int64_t start, stop;  // the part of the context, whole pages but for the end
  int64_t partial;      // where its sums go in the memory of partial results, in numbers; -1: the run's only part
};

struct AttentionArguments {
  const Run* runs;
  const float* q;
  float* out;
  float* partials;  // per run, head and row: d sums, highest score, total weight
  char* kv;
  int64_t q_stride, out_stride, num_kv_heads, group, head_size, page_size, values_offset, kv_type, window;
  double scale;
};

// The four sums of the lanes of four vectors.
inline void four_sums(vf a, vf b, vf c, vf d, float* out) {
#if defined(__AVX2__) && !defined(CHAIRLIFT_WIDE)
  __m256 ab = _mm256_hadd_ps((__m256)a, (__m256)b), cd = _mm256_hadd_ps((__m256)c, (__m256)d);
  __m256 all_four = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all_four), _mm256_extractf128_ps(all_four, 1)));
#else
  out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
#endif
}

inline vf load_kv(const float* from) { return load(from); }
inline vf load_kv(const uint16_t* from) { return load_bfloat(from); }
inline vf load_kv(const int8_t* from) { return load_int8(from); }

// scores[r][t] = queries[r] . keys[t] for R rows and four keys
template <int R, typename Number>
inline void dots_of_four(const float* queries, const char* keys, int64_t row_bytes, int64_t size, float* scores,
                         int64_t stride) {
  vf sums[R][4];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = vf{};
  for (int64_t i = 0; i < size; i += W) {
    vf query[R];  // 12 sums, 3 queries and one key are all that 16 registers hold
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) query[r] = load(queries + r * size + i);
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++) {
      const vf key = load_kv((const Number*)(keys + t * row_bytes) + i);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) sums[r][t] += query[r] * key;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) four_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * stride);
}

template <typename Number>
inline void score_page(const float* queries, int64_t num_rows, const char* keys, int64_t count, int64_t row_bytes,
                       int64_t size, float* scores) {
  for (int64_t t = 0; t < count; t += 4) {
    // A page's last keys may be fewer than four: then the last one stands in for those that are not there.
    char last[4 * 4 * 1024];
    const char* four = keys + t * row_bytes;
    if (count - t < 4) {
      for (int64_t i = 0; i < 4; i++) {
        const int64_t key = i < count - t ? i : count - t - 1;
        std::memcpy(last + i * row_bytes, four + key * row_bytes, row_bytes);
      }
      four = last;
    }
    float* to = scores + t;
    int64_t row = 0;
    for (; row + 3 <= num_rows; row += 3)
      dots_of_four<3, Number>(queries + row * size, four, row_bytes, size, to + row * SCORE_STRIDE, SCORE_STRIDE);
    if (num_rows - row == 2)
      dots_of_four<2, Number>(queries + row * size, four, row_bytes, size, to + row * SCORE_STRIDE, SCORE_STRIDE);
    else if (row < num_rows)
      dots_of_four<1, Number>(queries + row * size, four, row_bytes, size, to + row * SCORE_STRIDE, SCORE_STRIDE);
  }
}

// sums[r] += sum over t of weights[r][t] values[t], for R rows and C vectors of the head
template <int R, int C, typename Number>
inline void gather_tile(const float* weights, const char* values, int64_t count, int64_t row_bytes, int64_t size,
                        float* sums, int64_t column) {
  vf total[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) total[r][c] = load(sums + r * size + column + c * W);
  for (int64_t t = 0; t < count; t++) {
    const Number* row = (const Number*)(values + t * row_bytes) + column;
    // The fewer of weights and values stay in registers beside the sums.
    if constexpr (R < C) {
      vf weight[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) weight[r] = all(weights[r * SCORE_STRIDE + t]);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) {
        const vf value = load_kv(row + c * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) total[r][c] += value * weight[r];
      }
    } else {
      vf value[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) value[c] = load_kv(row + c * W);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const vf weight = all(weights[r * SCORE_STRIDE + t]);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) total[r][c] += value[c] * weight;
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(sums + r * size + column + c * W, total[r][c]);
}

template <int R, typename Number>
inline void gather_rows(const float* weights, const char* values, int64_t count, int64_t row_bytes, int64_t size,
                        float* sums) {
  constexpr int C = R == 1 ? 8 : R <= 3 ? 4 : 2;
  int64_t column = 0;
  for (; column + C * W <= size; column += C * W)
    gather_tile<R, C, Number>(weights, values, count, row_bytes, size, sums, column);
  for (; column < size; column += W) gather_tile<R, 1, Number>(weights, values, count, row_bytes, size, sums, column);
}

template <typename Number>
inline void gather_page(const float* weights, int64_t num_rows, const char* values, int64_t count, int64_t row_bytes,
                        int64_t size, float* sums) {
  int64_t row = 0;
  for (; row + 6 <= num_rows; row += 6)
    gather_rows<6, Number>(weights + row * SCORE_STRIDE, values, count, row_bytes, size, sums + row * size);
  for (; row + 3 <= num_rows; row += 3)
    gather_rows<3, Number>(weights + row * SCORE_STRIDE, values, count, row_bytes, size, sums + row * size);
  if (num_rows - row == 2)
    gather_rows<2, Number>(weights + row * SCORE_STRIDE, values, count, row_bytes, size, sums + row * size);
  else if (row < num_rows)
    gather_rows<1, Number>(weights + row * SCORE_STRIDE, values, count, row_bytes, size, sums + row * size);
}

// Turn one row's scores into weights, 0 outside [low, high), and rescale what the row has summed so far.
inline void weigh(float* scores, int64_t low, int64_t high, int64_t count, float* highest, float* total, float* sums,
                  int64_t size) {
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
    store(scores + t, weight);
    sum_of_weights += weight;
  }
  const float shrink = *highest == best ? 1.0f : std::exp(*highest - best);
  *total = *total * shrink + sum(sum_of_weights);
  if (shrink != 1.0f)
    for (int64_t i = 0; i < size; i += W) store(sums + i, load(sums + i) * shrink);
  *highest = best;
}

// Numbers of a page as float32 rows, for runs of so many rows that converting once pays.
inline const char* widened_page(const char* page, int64_t kv_type, int64_t count, int64_t size, float* wide) {
  const int64_t row_bytes = kv_row_bytes(kv_type, size);
  for (int64_t t = 0; t < count; t++)
    for (int64_t i = 0; i < size; i += W) {
      const char* row = page + t * row_bytes;
      const vf numbers =
          kv_type == KV_BFLOAT16 ? load_bfloat((const uint16_t*)row + i) : load_int8((const int8_t*)row + i);
      store(wide + t * size + i, numbers);
    }
  return (const char*)wide;
}

inline void score(const AttentionArguments& a, const float* queries, int64_t num_rows, const char* page, int64_t count,
                  float* wide, float* scores) {
  const int64_t size = a.head_size, row_bytes = kv_row_bytes(a.kv_type, size);
  if (a.kv_type == KV_FLOAT32)
    score_page<float>(queries, num_rows, page, count, row_bytes, size, scores);
  else if (num_rows > 6)
    score_page<float>(queries, num_rows, widened_page(page, a.kv_type, count, size, wide), count, 4 * size, size,
                      scores);
  else if (a.kv_type == KV_BFLOAT16)
    score_page<uint16_t>(queries, num_rows, page, count, row_bytes, size, scores);
  else
    score_page<int8_t>(queries, num_rows, page, count, row_bytes, size, scores);
  if (a.kv_type == KV_INT8)
    for (int64_t t = 0; t < count; t++) {
      float scale;
      std::memcpy(&scale, page + t * row_bytes + size, 4);
      for (int64_t row = 0; row < num_rows; row++) scores[row * SCORE_STRIDE + t] *= scale;
    }
}

inline void gather(const AttentionArguments& a, float* weights, int64_t num_rows, const char* page, int64_t count,
                   float* wide, float* sums) {
  const int64_t size = a.head_size, row_bytes = kv_row_bytes(a.kv_type, size);
  if (a.kv_type == KV_INT8)
    for (int64_t t = 0; t < count; t++) {
      float scale;
      std::memcpy(&scale, page + t * row_bytes + size, 4);
      for (int64_t row = 0; row < num_rows; row++) weights[row * SCORE_STRIDE + t] *= scale;
    }
  if (a.kv_type == KV_FLOAT32)
    gather_page<float>(weights, num_rows, page, count, row_bytes, size, sums);
  else if (num_rows > 6)
    gather_page<float>(weights, num_rows, widened_page(page, a.kv_type, count, size, wide), count, 4 * size, size,
                       sums);
  else if (a.kv_type == KV_BFLOAT16)
    gather_page<uint16_t>(weights, num_rows, page, count, row_bytes, size, sums);
  else
    gather_page<int8_t>(weights, num_rows, page, count, row_bytes, size, sums);
}

inline void attention_item(const int64_t* arguments, int64_t item) {
  const AttentionArguments& a = *(const AttentionArguments*)arguments;
  const Run& run = a.runs[item / a.num_kv_heads];
  const int64_t kv_head = item % a.num_kv_heads, size = a.head_size, num_rows = run.num_tokens * a.group;
  const int64_t row_bytes = kv_row_bytes(a.kv_type, size);
  const int64_t page_bytes = a.page_size * row_bytes, page_stride = a.num_kv_heads * page_bytes;
  float* queries = scratch(num_rows * (2 * size + SCORE_STRIDE + 2) + SEGMENT_TOKENS * size);
  float *sums = queries + num_rows * size, *scores = sums + num_rows * size;
  float *highest = scores + num_rows * SCORE_STRIDE, *totals = highest + num_rows, *wide = totals + num_rows;
  const float* q = a.q + run.first_row * a.q_stride + kv_head * a.group * size;
  for (int64_t token = 0; token < run.num_tokens; token++)
    for (int64_t i = 0; i < a.group * size; i++)
      queries[token * a.group * size + i] = q[token * a.q_stride + i] * (float)a.scale;
  for (int64_t i = 0; i < num_rows * size; i++) sums[i] = 0;
  for (int64_t row = 0; row < num_rows; row++) highest[row] = LOWEST, totals[row] = 0;
  const char* head_kv = a.kv + kv_head * page_bytes;
  const auto place_of = [&](int64_t token) {
    return head_kv + run.pages[token / a.page_size] * page_stride + token % a.page_size * row_bytes;
  };
  const auto count_at = [&](int64_t token, int64_t stop) {  // tokens of one page
    const int64_t end = (token / a.page_size + 1) * a.page_size;
    return (end < stop ? end : stop) - token;
  };
  const int64_t whole_pages = SEGMENT_TOKENS / a.page_size * a.page_size;
  const int64_t segment = whole_pages ? whole_pages : SEGMENT_TOKENS;
  for (int64_t start = run.start; start < run.stop;) {
    // Segments begin at fixed positions too, even where a window begins within one.
    const int64_t next_segment = (start / segment + 1) * segment;
    const int64_t stop = next_segment < run.stop ? next_segment : run.stop;
    // Each page is a piece of memory of its own, so only we know what is read next: keys, then values.
    for (int64_t first = start; first < stop;) {
      const int64_t count = count_at(first, stop), next = first + count;
      prefetch(next < stop ? place_of(next) : place_of(start) + a.values_offset, count * row_bytes);
      score(a, queries, num_rows, place_of(first), count, wide, scores + first - start);
      first = next;
    }
    for (int64_t row = 0; row < num_rows; row++) {
      const int64_t position = run.first_position + row / a.group;
      const int64_t low = a.window > 0 ? position - a.window + 1 - start : 0;
      weigh(scores + row * SCORE_STRIDE, low, position + 1 - start, stop - start, highest + row, totals + row,
            sums + row * size, size);
    }
    for (int64_t first = start; first < stop;) {
      const int64_t count = count_at(first, stop), next = first + count;
      if (next < stop) prefetch(place_of(next) + a.values_offset, count * row_bytes);
      gather(a, scores + first - start, num_rows, place_of(first) + a.values_offset, count, wide, sums);
      first = next;
    }
    start = stop;
  }
  if (run.partial >= 0) {
    float* to = a.partials + run.partial + kv_head * num_rows * (size + 2);
    for (int64_t row = 0; row < num_rows; row++, to += size + 2) {
      std::memcpy(to, sums + row * size, 4 * size);
      to[size] = highest[row], to[size + 1] = totals[row];
    }
    return;
  }
  for (int64_t row = 0; row < num_rows; row++) {
    const int64_t token = row / a.group, head = kv_head * a.group + row % a.group;
    float* to = a.out + (run.first_row + token) * a.out_stride + head * size;
    for (int64_t i = 0; i < size; i++) to[i] = sums[row * size + i] / totals[row];
  }
}

struct Merge {
  int64_t first_row, num_tokens, num_parts, first_partial;
};

struct MergeArguments {
  const Merge* merges;
  const float* partials;
  float* out;
  int64_t out_stride, num_kv_heads, group, head_size;
};

// Put the parts of one run and head together: each part's sums shrink by how far its best score lies below the best.
inline void merge_item(const int64_t* arguments, int64_t item) {
  const MergeArguments& a = *(const MergeArguments*)arguments;
  const Merge& merge = a.merges[item / a.num_kv_heads];
  const int64_t kv_head = item % a.num_kv_heads, size = a.head_size, num_rows = merge.num_tokens * a.group;
  const int64_t part_stride = a.num_kv_heads * num_rows * (size + 2);
  for (int64_t row = 0; row < num_rows; row++) {
    const float* part = a.partials + merge.first_partial + (kv_head * num_rows + row) * (size + 2);
    const int64_t token = row / a.group, head = kv_head * a.group + row % a.group;
    float* to = a.out + (merge.first_row + token) * a.out_stride + head * size;
    float best = LOWEST, total = 0;
    for (int64_t i = 0; i < merge.num_parts; i++) {
      const float highest = part[i * part_stride + size];
      best = highest > best ? highest : best;
    }
    for (int64_t i = 0; i < size; i++) to[i] = 0;
    for (int64_t i = 0; i < merge.num_parts; i++) {
      const float* from = part + i * part_stride;
      const float shrink = std::exp(from[size] - best);
      total += from[size + 1] * shrink;
      for (int64_t j = 0; j < size; j += W) store(to + j, load(to + j) + load(from + j) * shrink);
    }
    for (int64_t i = 0; i < size; i++) to[i] /= total;
  }
}

}  // namespace CHAIRLIFT_ISA
