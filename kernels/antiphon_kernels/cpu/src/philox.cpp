// Philox4x32-10: the words of counters that differ in their first word alone.
#include <cstdint>

#include "pool.h"
#include "simd.h"

namespace antiphon {
namespace {

constexpr int kRounds = 10;
constexpr int kSideBySide = 16;
constexpr int64_t kSpan = 512;  // Counters handed to a thread at a time.

// kSideBySide counters side by side, so that the compiler keeps each word in vector registers.
void words_of(uint32_t first, const uint32_t* rest, uint32_t key0, uint32_t key1,
              uint32_t (*out)[kSideBySide]) {
  uint32_t x0[kSideBySide], x1[kSideBySide], x2[kSideBySide], x3[kSideBySide];
  for (int lane = 0; lane < kSideBySide; ++lane) {
    x0[lane] = first + static_cast<uint32_t>(lane);
    x1[lane] = rest[0];
    x2[lane] = rest[1];
    x3[lane] = rest[2];
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int lane = 0; lane < kSideBySide; ++lane) {
      const uint64_t low0 = static_cast<uint64_t>(x0[lane]) * 0xD2511F53u;
      const uint64_t low1 = static_cast<uint64_t>(x2[lane]) * 0xCD9E8D57u;
      x0[lane] = static_cast<uint32_t>(low1 >> 32) ^ x1[lane] ^ key0;
      x2[lane] = static_cast<uint32_t>(low0 >> 32) ^ x3[lane] ^ key1;
      x1[lane] = static_cast<uint32_t>(low1);
      x3[lane] = static_cast<uint32_t>(low0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int lane = 0; lane < kSideBySide; ++lane) {
    out[0][lane] = x0[lane];
    out[1][lane] = x1[lane];
    out[2][lane] = x2[lane];
    out[3][lane] = x3[lane];
  }
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
    uint32_t tile[4][kSideBySide];
    for (int64_t first = span * kSpan; first < end; first += kSideBySide) {
      words_of(static_cast<uint32_t>(first), rest, key0, key1, tile);
      for (int64_t block = first; block < first + kSideBySide && block < end; ++block)
        for (int word = 0; word < 4; ++word) words[block * 4 + word] = tile[word][block - first];
    }
  });
}
