// Byte products: four of them summed into each 32-bit lane, and floats rounded to two bytes.
//
// The integers are the same on every instruction set: no sum saturates or wraps.
#pragma once

#include "simd.h"

namespace antiphon {

inline Words broadcast_word(const int8_t* four) {
  uint32_t word;
  std::memcpy(&word, four, 4);
#if defined(__AVX512F__)
  return (Words)_mm512_set1_epi32(static_cast<int>(word));
#else
  return Words{} + word;
#endif
}

inline Ints broadcast_int(int32_t value) { return Ints{} + value; }

#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
inline __m512i pair_products(__m512i a, __m512i b) { return _mm512_madd_epi16(a, b); }
#elif defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
inline __m256i pair_products(__m256i a, __m256i b) { return _mm256_madd_epi16(a, b); }
#endif

// sum[i] + the products of the four unsigned bytes of codes[i], Bits wide, with the four signed
// bytes of x[i].
template <int Bits>
inline Ints dot_bytes(Ints sum, Words codes, Words x) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)x);
#elif defined(__AVX512BW__)
  // Two products of seven bits or less fit into 16 bits; wider ones are widened first.
  if constexpr (Bits < 8) {
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)codes, (__m512i)x);
    return sum + (Ints)pair_products(pairs, _mm512_set1_epi16(1));
  }
  const __m512i even = pair_products((__m512i)(codes & 0x00ff00ffu),
                                     _mm512_srai_epi16(_mm512_slli_epi16((__m512i)x, 8), 8));
  const __m512i odd =
      pair_products(_mm512_srli_epi16((__m512i)codes, 8), _mm512_srai_epi16((__m512i)x, 8));
  return sum + (Ints)even + (Ints)odd;
#elif defined(__AVXVNNI__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)x);
#elif defined(__AVX2__)
  if constexpr (Bits < 8) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
    return sum + (Ints)pair_products(pairs, _mm256_set1_epi16(1));
  }
  const __m256i even = pair_products((__m256i)(codes & 0x00ff00ffu),
                                     _mm256_srai_epi16(_mm256_slli_epi16((__m256i)x, 8), 8));
  const __m256i odd =
      pair_products(_mm256_srli_epi16((__m256i)codes, 8), _mm256_srai_epi16((__m256i)x, 8));
  return sum + (Ints)even + (Ints)odd;
#else
  for (int byte = 0; byte < 32; byte += 8)
    sum += (Ints)(codes >> byte & 0xffu) * ((Ints)(x << (24 - byte)) >> 24);
  return sum;
#endif
}

inline int32_t max_lanes(Ints value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)value);
#else
  int32_t highest = value[0];
  for (int lane = 1; lane < kLanes; ++lane) highest = value[lane] > highest ? value[lane] : highest;
  return highest;
#endif
}

// Elements of a row of activations that share a scale.
constexpr int kRounded = 32;
// The largest code: its high byte is 127.
constexpr float kLargestCode = 32512.0f;

// Rounds 32 floats to 16-bit codes 256 high + low, both signed bytes, and returns their scale: the
// largest magnitude over kLargestCode. A block with a NaN or an infinity has the scale NaN, so
// that it shows in the products; one that is zero, or so small that a scale would lose its bits,
// has the scale zero.
inline float round_block(const float* x, int8_t* high, int8_t* low) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes), aligned(1)));
  constexpr int kVectors = kRounded / kLanes;
  Floats parts[kVectors];
  Ints magnitudes = {};
  for (int v = 0; v < kVectors; ++v) {
    parts[v] = load(x + v * kLanes);
    const Ints bits = (Ints)parts[v] & 0x7fffffff;
    magnitudes = bits > magnitudes ? bits : magnitudes;
  }
  const int32_t bits = max_lanes(magnitudes);
  float largest;
  std::memcpy(&largest, &bits, 4);
  const bool usable = largest >= 0x1p-100f && bits < 0x7f800000;
  const Floats inverse = broadcast(usable ? kLargestCode / largest : 0.0f);
  // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits.
  const Floats rounding = broadcast(0x1.8p23f);
  for (int v = 0; v < kVectors; ++v) {
    const Ints whole = (Ints)(parts[v] * inverse + rounding) - (Ints)rounding;
    const Ints upper = (whole + 128) >> 8;
    const auto put = [&](int8_t* to, Ints part) {
      *reinterpret_cast<Bytes*>(to + v * kLanes) =
          usable ? __builtin_convertvector(part, Bytes) : Bytes{};
    };
    put(high, upper);
    put(low, whole - upper * 256);
  }
  if (usable) return largest / kLargestCode;
  return bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
}

}  // namespace antiphon
