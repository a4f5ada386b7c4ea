// Vectors of floats for one instruction set, chosen by the compiler's target flags.
//
// Every multiply-add goes through fma() below and contraction is off, so two instantiations
// of a kernel round alike and results do not depend on how rows are tiled.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define ANTIPHON_EXPORT extern "C" __attribute__((visibility("default")))

namespace antiphon {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef float UnalignedFloats __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint32_t UnalignedWords __attribute__((vector_size(kLanes * 4), aligned(4)));

// Output channels of one weight panel, and the vectors that hold them.
constexpr int kPanel = 32;
constexpr int kPanelVectors = kPanel / kLanes;

inline Floats load(const float* from) {
  return *reinterpret_cast<const UnalignedFloats*>(from);
}

inline void store(float* to, Floats value) {
  *reinterpret_cast<UnalignedFloats*>(to) = value;
}

inline Words load_words(const uint32_t* from) {
  return *reinterpret_cast<const UnalignedWords*>(from);
}

inline void store_words(uint32_t* to, Words value) {
  *reinterpret_cast<UnalignedWords*>(to) = value;
}

inline Floats broadcast(float value) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(value);
#else
  return Floats{value, value, value, value, value, value, value, value};
#endif
}

inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline Floats to_floats(Ints value) { return __builtin_convertvector(value, Floats); }

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

// kLanes bytes, zero-extended.
inline Ints widen_unsigned(const uint8_t* from) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  Ints wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = from[lane];
  return wide;
#endif
}

// kLanes bytes, sign-extended.
inline Ints widen_signed(const int8_t* from) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  Ints wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = from[lane];
  return wide;
#endif
}

// An IEEE half as a float, subnormals and infinities included.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  float value;
  if (magnitude >= 0x7c00u) {
    const uint32_t bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    std::memcpy(&value, &bits, 4);
  } else {
    // The exponent field moves from bias 15 to 127 by an exact multiplication by 2^112.
    const uint32_t bits = magnitude << 13;
    std::memcpy(&value, &bits, 4);
    value *= 0x1p112f;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float bfloat_to_float(uint16_t brain) {
  const uint32_t bits = static_cast<uint32_t>(brain) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline Floats load_halves(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Floats wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = half_to_float(from[lane]);
  return wide;
#endif
}

inline Floats load_bfloats(const uint16_t* from) {
#if defined(__AVX512F__)
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
#elif defined(__AVX2__)
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
#else
  Floats wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = bfloat_to_float(from[lane]);
  return wide;
#endif
}

// Sum of the lanes, as a fixed tree.
inline float sum_lanes(Floats value) {
#if defined(__AVX512F__)
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256((__m512)value), _mm512_extractf32x8_ps((__m512)value, 1));
#elif defined(__AVX2__)
  const __m256 eight = (__m256)value;
#endif
#if defined(__AVX2__)
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#endif
  float lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

inline float max_lanes(Floats value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#endif
  float lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane)
      if (lanes[lane + width] > lanes[lane]) lanes[lane] = lanes[lane + width];
  return lanes[0];
}

// e^x within about one unit in the last place; below -87.3 it is zero, above 88.3 infinite.
inline Floats exp(Floats x) {
  const Floats rounding = broadcast(0x1.8p23f);
  const Floats shifted = fma(x, broadcast(0x1.715476p0f), rounding);
  const Floats whole = shifted - rounding;
  Floats rest = fma(whole, broadcast(-0x1.62e400p-1f), x);
  rest = fma(whole, broadcast(-0x1.7f7d1cp-20f), rest);
  Floats series = broadcast(1.9875691500e-4f);
  series = fma(series, rest, broadcast(1.3981999507e-3f));
  series = fma(series, rest, broadcast(8.3334519073e-3f));
  series = fma(series, rest, broadcast(4.1665795894e-2f));
  series = fma(series, rest, broadcast(1.6666665459e-1f));
  series = fma(series, rest, broadcast(5.0000001201e-1f));
  series = fma(series * rest, rest, rest) + 1.0f;
  const Ints exponent = ((Ints)shifted - (Ints)rounding) << 23;
  Floats result = (Floats)((Ints)series + exponent);
  result = x < broadcast(-87.3f) ? Floats{} : result;
  return x > broadcast(88.3f) ? broadcast(__builtin_inff()) : result;
}

// tanh within about two units in the last place.
inline Floats tanh(Floats x) {
  const Floats square = x * x;
  Floats series = broadcast(-5.70498872745e-3f);
  series = fma(series, square, broadcast(2.06390887954e-2f));
  series = fma(series, square, broadcast(-5.37397155531e-2f));
  series = fma(series, square, broadcast(1.33314422036e-1f));
  series = fma(series, square, broadcast(-3.33332819422e-1f));
  const Floats small = fma(series * square, x, x);
  const Floats large = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return square < broadcast(0.390625f) ? small : large;
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace antiphon
