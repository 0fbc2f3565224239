// From a segment's scores to its weights as whole numbers in 16 bits, in one pass; the same for few rows and for tiles.
//
// Knows nothing of products. A weight is e**(score - best so far) times its value's scale; what the largest could be,
// a weight of one at the largest scale that the row sees, becomes 65,535. That is known before the weights are, and no
// pass over them has to find it. Both depend on nothing but what the row sees, however its prompt was cut.
#pragma once

#include <cmath>

#include "split_rows.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float MOST_WHOLE = 65535.0f;
constexpr float LEAST_SCALE = 1e-30f;  // 65,535 of them are a number still

// 2**x times a factor that the numbers of the polynomial carry, to about 3e-6: a third of the last bit of 16.
//   x = n + r, 0 <= r < 1;   2**x = 2**n p(r), with the polynomial of degree 4 whose largest relative error is least
struct PowerOfTwo {
  vf p[5];

  explicit PowerOfTwo(float factor) {
    constexpr float numbers[5] = {1.0000025934f, 0.69300383447f, 0.24144275689f, 0.052011460610f, 0.013534167916f};
    for (int i = 0; i < 5; i++) p[i] = all(numbers[i] * factor);
  }

  vf operator()(vf x) const {
#if defined(__AVX512DQ__)
    const vf r = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const vf power = (((p[4] * r + p[3]) * r + p[2]) * r + p[1]) * r + p[0];
    return (vf)_mm512_scalef_ps((__m512)power, (__m512)x);
#else
    x = max(all(-126.0f), x);
    const vf n = __builtin_convertvector(nearest(x - 0.5f), vf), r = x - n;
    const vf power = (((p[4] * r + p[3]) * r + p[2]) * r + p[1]) * r + p[0];
    return power * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
#endif
  }
};

// What whole weights must be multiplied with, and what makes them whole: one divided by that.
struct WholeScale {
  float scale, stretch;

  static WholeScale of(float largest) {
    const float scale = (largest < LEAST_SCALE ? LEAST_SCALE : largest) / MOST_WHOLE;
    return {scale, 1 / scale};
  }
};

// The scales of a segment's values. What is not finite is kept as what is not a number.
struct ValueScales {
  float numbers[SEGMENT_TOKENS];
  WholeScale scale;  // for a row that sees all of them
  bool are_finite;
};

inline vf visible(vf numbers, int64_t place, int64_t low, int64_t high, float otherwise) {
  const vi lane = first_lanes() + (int32_t)place;
  return ((lane >= (int32_t)low) & (lane < (int32_t)high)) ? numbers : all(otherwise);
}

// Those that the segment's strips name, of a head whose part lies so many bytes behind.
inline void take_value_scales(const TileSegment& segment, int64_t count, int64_t bytes, ValueScales& to) {
  vf largest = vf{}, nothing = vf{};
  for (int64_t strip = 0; strip < segment.num_strips; strip++)
    for (int64_t t = strip * STRIP; t < (strip + 1) * STRIP; t += W) {
      // Behind the last token there may be anything.
      const float* from = (const float*)(segment.strips[strip].value_scales + bytes) + t % STRIP;
      const vf scales = visible(load(from), t, 0, count, 0), none = scales * 0.0f;
      nothing += none;
      store(to.numbers + t, none == 0.0f ? scales : all(std::nanf("")));
      largest = max(largest, load(to.numbers + t));
    }
  to.scale = WholeScale::of(max(largest));
  to.are_finite = sum(nothing) == 0;
}

// Store numbers of a chunk, not below zero, to the nearest whole ones.
inline void store_chunk(uint8_t* upper, uint8_t* lower, const vf (&numbers)[CHUNK / W]) {
#if defined(__AVX512BW__)
  const auto whole = [&](int i) { return _mm512_cvtps_epi32((__m512)numbers[i]); };
  // Packing goes by quarters of a vector: words of four numbers of each come to lie side by side, and are sorted at the end.
  const __m512i first = _mm512_packus_epi32(whole(0), whole(1)), second = _mm512_packus_epi32(whole(2), whole(3));
  const __m512i low = _mm512_set1_epi16(255);
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i lows = _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low));
  const __m512i highs = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
  _mm512_storeu_si512(lower, _mm512_permutexvar_epi32(order, lows));
  _mm512_storeu_si512(upper, _mm512_permutexvar_epi32(order, highs));
#else
  for (int64_t i = 0; i < CHUNK / W; i++)
    store_split(upper + i * W, lower + i * W, nearest(min(numbers[i], all(MOST_WHOLE))));
#endif
}

// What a row has summed so far.
struct RowSums {
  float *sums, *highest, *totals;  // the last in every lane apart
};

// Every row's lanes become one number, at the beginning.
inline void sum_lanes(float* totals, int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; row++) totals[row] = sum(load(totals + row * W));
}

// A row's part of a segment: which tokens it sees, and what their weights are computed with.
//   e**(score - best) = 2**(score * factor - bias)
struct RowPart {
  int64_t low, high;
  float factor, bias;
  WholeScale scale;
};

// Calls body(place, whether the row sees all of the vector) for vectors of the chunks that hold something that it sees.
template <typename Body>
inline void each_vector(const RowPart& part, Body body) {
  for (int64_t chunk = part.low / CHUNK * CHUNK; chunk < part.high; chunk += CHUNK) {
    const bool is_whole = part.low <= chunk && chunk + CHUNK <= part.high;
    if (is_whole) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < CHUNK / W; i++) body(chunk + i * W, std::true_type(), i);
    } else {
      for (int64_t i = 0; i < CHUNK / W; i++) body(chunk + i * W, std::false_type(), i);
    }
  }
}

// Find the best of the scores [low, high) of a row, and rescale what the row has summed so far. All other scores are not
// looked at.
//   scores   still to be multiplied with the query's scale
inline RowPart raise_best(const float* scores, float query_scale, int64_t low, int64_t high, int64_t count,
                          const ValueScales& values, const RowSums& so_far, int64_t size) {
  low = low < 0 ? 0 : low > count ? count : low;
  high = high < low ? low : high > count ? count : high;
  RowPart part = {low, high, query_scale * LOG2_E, 0, {0, 0}};
  if (low == high) return part;
  vf peaks[CHUNK / W];  // apart: one would wait for itself
  for (vf& peak : peaks) peak = all(LOWEST);
  each_vector(part, [&](int64_t t, auto is_whole, int64_t i) {
    const vf score = load(scores + t);
    peaks[i] = max(peaks[i], decltype(is_whole)::value ? score : visible(score, t, low, high, LOWEST));
  });
  for (vf& peak : peaks) peaks[0] = max(peaks[0], peak);
  const float segment_best = max(peaks[0]) * query_scale, before = *so_far.highest;
  const float best = segment_best > before ? segment_best : before;
  part.bias = best * LOG2_E;

  part.scale = values.scale;
  if (low > 0 || high < count) {
    vf largest = vf{};
    each_vector(part, [&](int64_t t, auto, int64_t) {
      largest = max(largest, visible(load(values.numbers + t), t, low, high, 0));
    });
    part.scale = WholeScale::of(max(largest));
  }
  if (before == best) return part;
  const float shrink = before <= LOWEST ? 0 : std::exp(before - best);
  store(so_far.totals, load(so_far.totals) * shrink);
  for (int64_t i = 0; i < size; i += W) store(so_far.sums + i, load(so_far.sums + i) * shrink);
  *so_far.highest = best;
  return part;
}

// Weights of a row's part; those of the segment's other tokens become zero.
inline void split_weights(const float* scores, const RowPart& part, int64_t count, const ValueScales& values,
                          float* totals, const SplitRows& to, int64_t row) {
  const int64_t end = (count + CHUNK - 1) / CHUNK * CHUNK;
  const int64_t begin = part.low / CHUNK * CHUNK, stop = (part.high + CHUNK - 1) / CHUNK * CHUNK;
  uint8_t *upper = to.upper + row * SEGMENT_TOKENS, *lower = to.lower + row * SEGMENT_TOKENS;
  to.scales[row] = part.scale.scale;
  if (part.low == part.high) {
    std::memset(upper, 0, end), std::memset(lower, 0, end);
    return;
  }
  if (begin > 0 || stop < end) {
    std::memset(upper, 0, begin), std::memset(lower, 0, begin);
    std::memset(upper + stop, 0, end - stop), std::memset(lower + stop, 0, end - stop);
  }
  const PowerOfTwo power(part.scale.stretch);
  vf total = vf{}, weights[CHUNK / W];
  each_vector(part, [&](int64_t t, auto is_whole, int64_t i) {
    const auto seen = [&](vf numbers) {
      return decltype(is_whole)::value ? numbers : visible(numbers, t, part.low, part.high, 0);
    };
    const vf weight = power(load(scores + t) * part.factor - part.bias);
    total += seen(weight);
    weights[i] = seen(weight * load(values.numbers + t));  // a scale that is not seen may be no number
    if (i == CHUNK / W - 1) store_chunk(upper + t + W - CHUNK, lower + t + W - CHUNK, weights);
  });
  store(totals, load(totals) + total * part.scale.scale);
  if (values.are_finite) return;
  each_vector(part, [&](int64_t t, auto, int64_t) {
    store(totals, load(totals) + visible(load(values.numbers + t) * 0.0f, t, part.low, part.high, 0));
  });
}

}  // namespace CHAIRLIFT_ISA

#endif
