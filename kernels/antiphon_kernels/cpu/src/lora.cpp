// Low-rank additions of many adapters to the outputs of one projection.
//
// Each row names its adapter by slot; slot 0 is the base model and leaves the row alone. Every
// output is summed in an order of its own, whatever the other rows are and whoever computes it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "pool.h"
#include "simd.h"

namespace antiphon {

// As in signatures.py.
struct LoraPart {
  const float* a;  // (rank, depth)
  const float* b;  // (rank, outputs of the part), the scale folded in
  int64_t rank;
};

struct Lora {
  const LoraPart* parts;  // (slots, count)
  const int64_t* sizes;   // outputs of each part
  int64_t count;
  int64_t slots;
  int64_t depth;
};

namespace {

constexpr int64_t kRanks = 4;
constexpr int64_t kOutputs = 256;
// Products below this many in total are not worth a second thread.
constexpr int64_t kParallelProducts = 32 * 1024;

inline int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

// Calls body(part, begin, end, offset) for the piece of that number, offset being where the part
// begins; lengths(part) are cut into pieces of `piece`, part after part.
template <typename Lengths, typename Body>
inline void with_piece(int64_t count, int64_t number, int64_t piece, const Lengths& lengths,
                       const Body& body) {
  int64_t offset = 0;
  for (int64_t part = 0; part < count; ++part) {
    const int64_t length = lengths(part), here = pieces(length, piece);
    if (number < here) {
      body(part, number * piece, std::min(length, (number + 1) * piece), offset);
      return;
    }
    number -= here;
    offset += length;
  }
}

template <int64_t Ranks>
inline void dots(const float* x, const float* a, int64_t depth, float* out) {
  Floats sums[Ranks] = {};
  int64_t d = 0;
  for (; d + kLanes <= depth; d += kLanes) {
    const Floats values = load(x + d);
    for (int64_t r = 0; r < Ranks; ++r) sums[r] = fma(values, load(a + r * depth + d), sums[r]);
  }
  for (int64_t r = 0; r < Ranks; ++r) {
    float total = sum_lanes(sums[r]);
    for (int64_t rest = d; rest < depth; ++rest) total += x[rest] * a[r * depth + rest];
    out[r] = total;
  }
}

inline void add_outputs(const float* hidden, const LoraPart& part, int64_t size, int64_t begin,
                        int64_t end, float* y) {
  int64_t o = begin;
  for (; o + kLanes <= end; o += kLanes) {
    Floats sum{};
    for (int64_t r = 0; r < part.rank; ++r)
      sum = fma(broadcast(hidden[r]), load(part.b + r * size + o), sum);
    store(y + o, load(y + o) + sum);
  }
  for (; o < end; ++o) {
    float sum = 0.0f;
    for (int64_t r = 0; r < part.rank; ++r) sum += hidden[r] * part.b[r * size + o];
    y[o] += sum;
  }
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

// Adds (x A^T) B of each row's adapter to its row of y. Returns 0, or 1 for a slot outside the
// table, before anything is written.
ANTIPHON_EXPORT int antiphon_lora(const Lora* lora, const float* x, int64_t x_row,
                                  const int32_t* slots, int64_t rows, float* y, int64_t y_row,
                                  int threads) {
  thread_local std::vector<float> scratch;
  int64_t ranks = 0, groups = 0, outputs = 0, blocks = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (slots[row] < 0 || slots[row] >= lora->slots) return 1;
    const LoraPart* parts = lora->parts + slots[row] * lora->count;
    int64_t sum = 0, cut = 0;
    for (int64_t part = 0; part < lora->count && slots[row] != 0; ++part) {
      sum += parts[part].rank;
      cut += pieces(parts[part].rank, kRanks);
    }
    ranks = std::max(ranks, sum);
    groups = std::max(groups, cut);
  }
  if (ranks == 0) return 0;
  for (int64_t part = 0; part < lora->count; ++part) {
    outputs += lora->sizes[part];
    blocks += pieces(lora->sizes[part], kOutputs);
  }
  if (static_cast<int64_t>(scratch.size()) < rows * ranks) scratch.resize(rows * ranks);
  float* const hidden = scratch.data();
  const auto team = [&](int64_t products) { return products < kParallelProducts ? 1 : threads; };
  parallel_for(team(rows * ranks * lora->depth), rows * groups, [=](int64_t item) {
    const int64_t row = item / groups;
    if (slots[row] == 0) return;
    const LoraPart* parts = lora->parts + slots[row] * lora->count;
    with_piece(
        lora->count, item % groups, kRanks, [=](int64_t part) { return parts[part].rank; },
        [=](int64_t part, int64_t begin, int64_t end, int64_t offset) {
          const float* a = parts[part].a + begin * lora->depth;
          float* out = hidden + row * ranks + offset + begin;
          if (end - begin == kRanks)
            dots<kRanks>(x + row * x_row, a, lora->depth, out);
          else
            for (int64_t r = 0; r < end - begin; ++r)
              dots<1>(x + row * x_row, a + r * lora->depth, lora->depth, out + r);
        });
  });
  parallel_for(team(rows * ranks * outputs / lora->count), rows * blocks, [=](int64_t item) {
    const int64_t row = item / blocks;
    if (slots[row] == 0) return;
    const LoraPart* parts = lora->parts + slots[row] * lora->count;
    with_piece(
        lora->count, item % blocks, kOutputs, [=](int64_t part) { return lora->sizes[part]; },
        [=](int64_t part, int64_t begin, int64_t end, int64_t offset) {
          const float* own = hidden + row * ranks;
          for (int64_t before = 0; before < part; ++before) own += parts[before].rank;
          add_outputs(own, parts[part], lora->sizes[part], begin, end, y + row * y_row + offset);
        });
  });
  return 0;
}
