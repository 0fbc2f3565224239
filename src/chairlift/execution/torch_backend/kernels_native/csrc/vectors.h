// Vectors of W numbers in the compiler's own vector types, so that one source serves every instruction set.
//
// Knows nothing of models. Each instruction set compiles this into a namespace of its own (CHAIRLIFT_ISA); what differs
// between them is W and the products in dots.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace CHAIRLIFT_ISA {

#ifdef CHAIRLIFT_WIDE
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint16_t vu16 __attribute__((vector_size(2 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef int8_t vi8 __attribute__((vector_size(W)));
typedef int16_t vi16 __attribute__((vector_size(2 * W)));

inline vf load(const float* from) {
  vf v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, vf v) { std::memcpy(to, &v, sizeof v); }

inline vf all(float x) { return x - vf{}; }
inline vi all_whole(int32_t x) { return x - vi{}; }

// 0, 1, 2 ...
inline vi first_lanes() {
#ifdef CHAIRLIFT_WIDE
  return vi{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  return vi{0, 1, 2, 3, 4, 5, 6, 7};
#endif
}

template <int STEP>
inline vf turned(vf v) {
  return __builtin_shuffle(v, (first_lanes() + STEP) & (W - 1));
}

// Halves onto halves.
inline float sum(vf v) {
  if constexpr (W == 16) v += turned<8>(v);
  v += turned<4>(v);
  v += turned<2>(v);
  v += turned<1>(v);
  return v[0];
}

inline float max(vf v) {
  if constexpr (W == 16) v = v > turned<8>(v) ? v : turned<8>(v);
  v = v > turned<4>(v) ? v : turned<4>(v);
  v = v > turned<2>(v) ? v : turned<2>(v);
  v = v > turned<1>(v) ? v : turned<1>(v);
  return v[0];
}

// Where b is not a number the answer is a, and where a is none it stays so.
inline vf max(vf a, vf b) { return a < b ? b : a; }
inline vf min(vf a, vf b) { return a > b ? b : a; }
inline vf absolute(vf a) { return (vf)((vi)a & 0x7fffffff); }

// Half precision, one number at a time; subnormals included.
inline float widened_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
  uint32_t bits = sign | ((rest << 13) + 0x38000000);  // 2**(127 - 15) more in the exponent
  if (rest >= 0x7c00) bits += 0x38000000;              // infinity and what is not a number
  if (rest < 0x400) {                                  // subnormal: rest * 2**-24
    float value = (float)rest * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline vf load_half(const uint16_t* from) {
#if defined(__AVX512F__) && defined(CHAIRLIFT_WIDE)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__) && !defined(CHAIRLIFT_WIDE)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  float wide[W];
  for (int i = 0; i < W; i++) wide[i] = widened_half(from[i]);
  return load(wide);
#endif
}

inline vf load_bfloat(const uint16_t* from) {
  vu16 halves;
  std::memcpy(&halves, from, sizeof halves);
  return (vf)(__builtin_convertvector(halves, vu) << 16);
}

inline void store_bfloat(uint16_t* to, vf v) {
#if defined(__AVX512BF16__) && defined(CHAIRLIFT_WIDE)
  const __m256bh converted = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &converted, sizeof converted);
  return;
#endif
  vu bits = (vu)v;
  vu rounded = bits + 0x7fff + ((bits >> 16) & 1);  // to nearest, ties to even
  // What is not a number must stay so: rounding could carry it over to infinity or zero.
  vu is_nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
  rounded = (is_nan & (bits | 0x400000)) | (~is_nan & rounded);
  vu16 halves = __builtin_convertvector(rounded >> 16, vu16);
  std::memcpy(to, &halves, sizeof halves);
}

inline vf load_int8(const int8_t* from) {
  vi8 bytes;
  std::memcpy(&bytes, from, sizeof bytes);
#if defined(__AVX512F__) && defined(CHAIRLIFT_WIDE)
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes));
#elif defined(__AVX2__) && !defined(CHAIRLIFT_WIDE)
  int64_t low;
  std::memcpy(&low, from, 8);
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(low)));
#else
  return __builtin_convertvector(__builtin_convertvector(bytes, vi), vf);
#endif
}

// To the nearest whole number (ties to even), for |x| < 2**22.
inline vi nearest(vf x) {
  const float magic = 12582912.0f;  // 1.5 * 2**23: adding it leaves the whole number in the lowest bits
  return (vi)(x + magic) - 0x4b400000;
}

inline void store_narrow(int8_t* to, vi whole) {
#if defined(__AVX512F__) && defined(CHAIRLIFT_WIDE)
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)whole));
#elif defined(__AVX2__) && !defined(CHAIRLIFT_WIDE)
  const __m128i low = _mm256_castsi256_si128((__m256i)whole), high = _mm256_extracti128_si256((__m256i)whole, 1);
  const __m128i halves = _mm_packs_epi32(low, high);
  _mm_storel_epi64((__m128i*)to, _mm_packs_epi16(halves, halves));
#else
  const vi8 bytes = __builtin_convertvector(whole, vi8);
  std::memcpy(to, &bytes, sizeof bytes);
#endif
}

inline void store_narrow(int16_t* to, vi whole) {
  const vi16 halves = __builtin_convertvector(whole, vi16);
  std::memcpy(to, &halves, sizeof halves);
}

// e**x in float32 to about 1e-7, for -87 <= x <= 88; beyond these it stays at the bound's value. What is not a number
// stays so.
//   x = n ln 2 + r, |r| <= ln 2 / 2;   e**x = 2**n (1 + r + r**2 p(r)), with p of the Cephes library.
inline vf exponential(vf x) {
  x = min(max(x, all(-87.0f)), all(88.0f));
  vi n = nearest(x * 1.4426950408889634f);
  vf whole = __builtin_convertvector(n, vf);
  vf r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  vf p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return (1.0f + r + r * r * p) * (vf)((n + 127) << 23);
}

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

inline void prefetch(const void* address, int64_t num_bytes) {
  for (int64_t offset = 0; offset < num_bytes; offset += 64) __builtin_prefetch((const char*)address + offset, 0, 2);
}

}  // namespace CHAIRLIFT_ISA
