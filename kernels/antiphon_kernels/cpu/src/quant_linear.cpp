// Linear layers over packed weights, and rows of a packed embedding.
#include <memory>

#include "formats.h"
#include "grouped_product.h"
#include "pool.h"

namespace antiphon {
namespace {

// Input elements that are decoded at once: 128 x 32 floats stay in the first-level cache.
constexpr int64_t kDecodeDepth = 128;

struct Product {
  const Weight* weight;
  Input input;
  int64_t rows;
  const float* bias;
  float* out;
  int64_t out_stride;
};

// Writes one panel's 32 results of a row, or the ones that exist in the last panel.
inline void finish_row(const Product& call, int64_t panel, int64_t row, const float* sums) {
  const int64_t first = panel * kPanel;
  const int64_t left = call.weight->rows - first;
  const int64_t count = left < kPanel ? left : kPanel;
  float* to = call.out + row * call.out_stride + first;
  if (call.bias != nullptr)
    for (int64_t lane = 0; lane < count; ++lane) to[lane] = sums[lane] + call.bias[first + lane];
  else if (to != sums)
    std::memcpy(to, sums, static_cast<size_t>(count) * sizeof(float));
}

// Few rows: decoded weights go straight from registers into the sums.
template <typename Decoder>
void few_rows(const Product& call, int64_t panel) {
  alignas(64) float results[kDirectRows * kPanel];
  const Decoder decoder(*call.weight, panel);
  product_of_height<1, kDirectRows>(call.rows, Direct<Decoder>{decoder}, call.input, 0,
                                    call.weight->columns / Decoder::kGroup, results, kPanel,
                                    false);
  for (int64_t row = 0; row < call.rows; ++row)
    finish_row(call, panel, row, results + row * kPanel);
}

// Many rows: the panel is decoded piece by piece and multiplied from the cache.
template <typename Decoder>
void many_rows(const Product& call, int64_t panel) {
  alignas(64) float decoded[kDecodeDepth * kPanel];
  const Decoder decoder(*call.weight, panel);
  const bool direct = (panel + 1) * kPanel <= call.weight->rows;
  std::unique_ptr<float[]> edge(direct ? nullptr : new float[call.rows * kPanel]);
  float* to = direct ? call.out + panel * kPanel : edge.get();
  const int64_t stride = direct ? call.out_stride : kPanel;
  const int64_t groups = call.weight->columns / Decoder::kGroup;
  constexpr int64_t kPiece = kDecodeDepth / Decoder::kGroup;
  for (int64_t begin = 0; begin < groups; begin += kPiece) {
    const int64_t end = begin + kPiece < groups ? begin + kPiece : groups;
    const Decoded<Decoder> source(decoder, begin, end, decoded);
    grouped_product(call.rows, source, call.input, begin, end, to, stride, begin > 0);
  }
  if (direct && call.bias == nullptr) return;
  for (int64_t row = 0; row < call.rows; ++row) finish_row(call, panel, row, to + row * stride);
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

// Returns 0, or 1 for an unknown format.
ANTIPHON_EXPORT int antiphon_quant_linear(const Weight* weight, const float* x, int64_t x_stride,
                                     int64_t rows, const float* bias, float* out,
                                     int64_t out_stride, int threads) {
  const int64_t panels = (weight->rows + kPanel - 1) / kPanel;
  const int64_t work = panels * kPanel * weight->columns * rows;
  const int team = work < 64 * 1024 || panels < 2 ? 1 : threads;
  const bool known = with_decoder(weight->format, [&]<typename Decoder>() {
    const Input input = prepare<Decoder>(x, x_stride, rows, weight->columns, team);
    const Product call{weight, input, rows, bias, out, out_stride};
    parallel_for(team, panels, [&call](int64_t panel) {
      if (call.rows <= kDirectRows)
        few_rows<Decoder>(call, panel);
      else
        many_rows<Decoder>(call, panel);
    });
  });
  return known ? 0 : 1;
}

// out[m] = row ids[m] of the weight in fp32. Returns 0, 1 for an unknown format, or 2 for an
// id outside the weight, before anything is written.
ANTIPHON_EXPORT int antiphon_gather_rows(const Weight* weight, const int64_t* ids, int64_t count,
                                    float* out, int threads) {
  for (int64_t m = 0; m < count; ++m)
    if (ids[m] < 0 || ids[m] >= weight->rows) return 2;
  const int team = count < 4 ? 1 : threads;
  const bool known = with_decoder(weight->format, [&]<typename Decoder>() {
    parallel_for(team, count, [=](int64_t m) {
      const Decoder decoder(*weight, ids[m] / kPanel);
      const int lane = static_cast<int>(ids[m] % kPanel);
      for (int64_t k = 0; k < weight->columns; ++k)
        out[m * weight->columns + k] = decoder.at(k, lane);
    });
  });
  return known ? 0 : 1;
}
