// What the multipliers could do at most: byte products out of registers, for benchmarks to
// divide by.
#include "byte_dot.h"
#include "pool.h"

namespace antiphon {
namespace {

constexpr int kChains = 12;

// rounds x kChains vector instructions in independent chains.
Ints chains(int64_t rounds, Words codes, Words x) {
  Ints sums[kChains] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = dot_bytes<7>(sums[chain], codes, x);
    // Keeps the compiler from taking all rounds together.
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
#if defined(__AVX2__)
      asm volatile("" : "+v"(sums[chain]));
#else
      asm volatile("" : "+m"(sums[chain]));
#endif
    }
  }
  Ints total = {};
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) total += sums[chain];
  return total;
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

// Runs rounds on every thread and returns the number of byte products done.
ANTIPHON_EXPORT int64_t antiphon_byte_product_peak(int64_t rounds, int threads) {
  std::atomic<int64_t> done{0};
  parallel_for(threads, threads * 64, [&](int64_t piece) {
    const Ints sums = chains(rounds, Words{} + 0x01020304u, Words{} + static_cast<uint32_t>(piece));
    done += rounds * kChains * kLanes * 4 + (sums[0] == 0x7fffffff);
  });
  return done;
}
