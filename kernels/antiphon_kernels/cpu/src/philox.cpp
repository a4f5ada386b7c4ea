// Philox4x32-10: the words of counters that differ in their first word alone.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "pool.h"
#include "simd.h"

namespace antiphon {
namespace {

constexpr int kRounds = 10;
constexpr int64_t kSpan = 16384;  // Counters handed to a thread at a time.

// A word of each of kPairs counters, in the lower half of 64 bits; the upper half is void, since
// products read the lower one alone.
#if defined(__AVX512F__)
constexpr int kPairs = 8;
using Wide = __m512i;
inline Wide set(uint32_t value) { return _mm512_set1_epi64(value); }
inline Wide mix(Wide a, Wide b, Wide c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
inline Wide product(Wide a, Wide b) { return _mm512_mul_epu32(a, b); }
inline Wide upper(Wide a) { return _mm512_srli_epi64(a, 32); }
inline Wide counters(uint32_t first) {
  const Wide lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi64(set(first), lanes);
}
inline void store_blocks(uint32_t* to, const Wide* x) {
  const Wide low = _mm512_mask_blend_epi32(0xAAAA, x[0], _mm512_slli_epi64(x[1], 32));
  const Wide high = _mm512_mask_blend_epi32(0xAAAA, x[2], _mm512_slli_epi64(x[3], 32));
  const Wide even = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const Wide odd = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, even, high));
  _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(low, odd, high));
}
#else
constexpr int kPairs = 4;
using Wide = __m256i;
inline Wide set(uint32_t value) { return _mm256_set1_epi64x(value); }
inline Wide mix(Wide a, Wide b, Wide c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
inline Wide product(Wide a, Wide b) { return _mm256_mul_epu32(a, b); }
inline Wide upper(Wide a) { return _mm256_srli_epi64(a, 32); }
inline Wide counters(uint32_t first) {
  return _mm256_add_epi64(set(first), _mm256_set_epi64x(3, 2, 1, 0));
}
inline void store_blocks(uint32_t* to, const Wide* x) {
  const Wide low = _mm256_blend_epi32(x[0], _mm256_slli_epi64(x[1], 32), 0xAA);
  const Wide high = _mm256_blend_epi32(x[2], _mm256_slli_epi64(x[3], 32), 0xAA);
  const Wide even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8),
                      _mm256_permute2x128_si256(even, odd, 0x31));
}
#endif

constexpr int kSideBySide = 4;  // Chains of dependent products, to fill their latency.
constexpr int kBlocks = kSideBySide * kPairs;

// The words of kBlocks counters, one block behind another.
void words_of(uint32_t first, const uint32_t* rest, uint32_t key0, uint32_t key1, uint32_t* out) {
  Wide x[kSideBySide][4];
  for (int chain = 0; chain < kSideBySide; ++chain) {
    x[chain][0] = counters(first + static_cast<uint32_t>(chain * kPairs));
    for (int word = 1; word < 4; ++word) x[chain][word] = set(rest[word - 1]);
  }
  const Wide factor0 = set(0xD2511F53u), factor1 = set(0xCD9E8D57u);
  for (int round = 0; round < kRounds; ++round) {
    const Wide round0 = set(key0), round1 = set(key1);
    for (int chain = 0; chain < kSideBySide; ++chain) {
      const Wide low0 = product(x[chain][0], factor0), low1 = product(x[chain][2], factor1);
      x[chain][0] = mix(upper(low1), x[chain][1], round0);
      x[chain][2] = mix(upper(low0), x[chain][3], round1);
      x[chain][1] = low1;
      x[chain][3] = low0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int chain = 0; chain < kSideBySide; ++chain)
    store_blocks(out + chain * kPairs * 4, x[chain]);
}

}  // namespace
}  // namespace antiphon

ANTIPHON_EXPORT void antiphon_philox(uint64_t key, const uint32_t* rest, uint32_t* words,
                                     int64_t blocks, int threads) {
  using namespace antiphon;
  const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  const int64_t spans = (blocks + kSpan - 1) / kSpan;
  parallel_for(spans < 2 ? 1 : threads, spans, [=](int64_t span) {
    const int64_t end = (span + 1) * kSpan < blocks ? (span + 1) * kSpan : blocks;
    int64_t first = span * kSpan;
    for (; first + kBlocks <= end; first += kBlocks)
      words_of(static_cast<uint32_t>(first), rest, key0, key1, words + first * 4);
    if (first < end) {
      uint32_t last[kBlocks * 4];
      words_of(static_cast<uint32_t>(first), rest, key0, key1, last);
      std::memcpy(words + first * 4, last, static_cast<size_t>(end - first) * 16);
    }
  });
}
