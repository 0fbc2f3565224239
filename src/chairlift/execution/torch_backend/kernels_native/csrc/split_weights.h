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

// The scales of a segment's values. What is not finite is kept as what is not a number.
struct ValueScales {
  float numbers[SEGMENT_TOKENS];
  float largest;  // of the finite ones
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
  to.largest = max(largest);
  to.are_finite = sum(nothing) == 0;
}

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
  float *sums, *highest, *total;
};

// Weights of the scores [low, high) of a row; all others of the segment become zero, and are not looked at.
//   scores   still to be multiplied with the query's scale
inline void weigh_and_split(const float* scores, float query_scale, int64_t low, int64_t high, int64_t count,
                            const ValueScales& values, const RowSums& so_far, int64_t size, const SplitRows& to,
                            int64_t row) {
  const int64_t end = (count + CHUNK - 1) / CHUNK * CHUNK;
  low = low < 0 ? 0 : low > count ? count : low;
  high = high < low ? low : high > count ? count : high;
  // Chunks that hold what the row sees.
  uint8_t *upper = to.upper + row * SEGMENT_TOKENS, *lower = to.lower + row * SEGMENT_TOKENS;
  if (low == high) {
    std::memset(upper, 0, end), std::memset(lower, 0, end);
    to.scales[row] = 0;
    return;
  }
  const int64_t begin = low / CHUNK * CHUNK, stop = (high + CHUNK - 1) / CHUNK * CHUNK;
  const auto is_whole = [&](int64_t chunk) { return low <= chunk && chunk + CHUNK <= high; };
  std::memset(upper, 0, begin), std::memset(lower, 0, begin);
  std::memset(upper + stop, 0, end - stop), std::memset(lower + stop, 0, end - stop);

  vf peak = all(LOWEST), largest = vf{};
  const bool sees_all = low == 0 && high == count;
  for (int64_t chunk = begin; chunk < stop; chunk += CHUNK)
    if (is_whole(chunk)) {
#pragma GCC unroll 8
      for (int64_t t = chunk; t < chunk + CHUNK; t += W) {
        peak = max(peak, load(scores + t));
        if (!sees_all) largest = max(largest, load(values.numbers + t));
      }
    } else {
      for (int64_t t = chunk; t < chunk + CHUNK; t += W) {
        peak = max(peak, visible(load(scores + t), t, low, high, LOWEST));
        largest = max(largest, visible(load(values.numbers + t), t, low, high, 0));
      }
    }
  const float top = sees_all ? values.largest : max(largest), scale = (top < LEAST_SCALE ? LEAST_SCALE : top) / MOST_WHOLE;
  const float segment_best = max(peak) * query_scale;
  const float best = segment_best > *so_far.highest ? segment_best : *so_far.highest;

  const PowerOfTwo power(1 / scale);
  const float factor = query_scale * LOG2_E, bias = best * LOG2_E;
  vf total = vf{};
  for (int64_t chunk = begin; chunk < stop; chunk += CHUNK) {
    vf weights[CHUNK / W];
    const auto weigh_chunk = [&](auto seen) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < CHUNK / W; i++) {
        const int64_t t = chunk + i * W;
        const vf weight = seen(power(load(scores + t) * factor - bias), t);
        total += weight;
        weights[i] = weight * load(values.numbers + t);
      }
    };
    if (is_whole(chunk))
      weigh_chunk([](vf weight, int64_t) { return weight; });
    else
      weigh_chunk([&](vf weight, int64_t t) { return visible(weight, t, low, high, 0); });
    store_chunk(upper + chunk, lower + chunk, weights);
  }
  float added = sum(total) * scale;
  if (!values.are_finite) {
    vf nothing = vf{};
    for (int64_t t = begin; t < stop; t += W) nothing += visible(load(values.numbers + t) * 0.0f, t, low, high, 0);
    added += sum(nothing);
  }
  to.scales[row] = scale;
  if (*so_far.highest == best) {
    *so_far.total += added;
    return;
  }
  const float shrink = *so_far.highest <= LOWEST ? 0 : std::exp(*so_far.highest - best);
  *so_far.total = *so_far.total * shrink + added;
  for (int64_t i = 0; i < size; i += W) store(so_far.sums + i, load(so_far.sums + i) * shrink);
  *so_far.highest = best;
}

}  // namespace CHAIRLIFT_ISA

#endif
