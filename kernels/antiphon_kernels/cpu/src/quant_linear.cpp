// Linear layers over packed weights, and rows of a packed embedding.
#include <memory>

#include "formats.h"
#include "panel.h"
#include "pool.h"

namespace antiphon {
namespace {

// Input elements that are decoded at once: 128 x 32 floats stay in the first-level cache.
constexpr int64_t kDecodeDepth = 128;

// How far a single row asks for memory ahead of its use. Panels lie behind each other, so the
// distance runs on into the next one.
constexpr int64_t kPrefetchElements = 128;

struct Product {
  const Weight* weight;
  const float* x;
  int64_t x_stride;
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

// One row: decoded weights go straight from registers into the sums.
template <typename Decoder>
void single_row(const Product& call, int64_t panel) {
  Decoder decoder(*call.weight, panel);
  Floats sums[kPanelVectors] = {};
  const int64_t columns = call.weight->columns;
  for (int64_t group = 0; group * Decoder::kGroup < columns; ++group) {
    decoder.begin_group(group);
    decoder.prefetch(group + kPrefetchElements / Decoder::kGroup);
    const float* x = call.x + group * Decoder::kGroup;
#pragma GCC unroll 4
    for (int64_t k = 0; k < Decoder::kGroup; k += Decoder::kUnit)
      decoder.decode(group * Decoder::kGroup + k, [&](int u, int v, Floats weight) {
        sums[v] = fma(broadcast(x[k + u]), weight, sums[v]);
      });
  }
  float lanes[kPanel];
  for (int v = 0; v < kPanelVectors; ++v) store(lanes + v * kLanes, sums[v]);
  finish_row(call, panel, 0, lanes);
}

// Decodes input elements [begin, end) of a panel to fp32, 32 lanes per element; both are
// multiples of the group.
template <typename Decoder>
inline void decode_panel(Decoder& decoder, int64_t begin, int64_t end, float* to) {
  for (int64_t first = begin; first < end; first += Decoder::kGroup) {
    decoder.begin_group(first / Decoder::kGroup);
    for (int64_t k = first; k < first + Decoder::kGroup; k += Decoder::kUnit)
      decoder.decode(k, [&](int u, int v, Floats weight) {
        store(to + (k + u - begin) * kPanel + v * kLanes, weight);
      });
  }
}

// Many rows: the panel is decoded piece by piece and multiplied from the cache.
template <typename Decoder>
void many_rows(const Product& call, int64_t panel) {
  alignas(64) float decoded[kDecodeDepth * kPanel];
  Decoder decoder(*call.weight, panel);
  const int64_t columns = call.weight->columns;
  const bool direct = (panel + 1) * kPanel <= call.weight->rows;
  std::unique_ptr<float[]> edge(direct ? nullptr : new float[call.rows * kPanel]);
  float* to = direct ? call.out + panel * kPanel : edge.get();
  const int64_t stride = direct ? call.out_stride : kPanel;
  for (int64_t begin = 0; begin < columns; begin += kDecodeDepth) {
    const int64_t end = begin + kDecodeDepth < columns ? begin + kDecodeDepth : columns;
    decode_panel(decoder, begin, end, decoded);
    panel_product(call.rows, call.x + begin, call.x_stride, decoded, end - begin, to, stride,
                  begin > 0);
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
  const Product call{weight, x, x_stride, rows, bias, out, out_stride};
  const int64_t panels = (weight->rows + kPanel - 1) / kPanel;
  const int64_t work = panels * kPanel * weight->columns * rows;
  const int team = work < 64 * 1024 || panels < 2 ? 1 : threads;
  const bool known = with_decoder(weight->format, [&]<typename Decoder>() {
    parallel_for(team, panels, [&call](int64_t panel) {
      if (call.rows == 1)
        single_row<Decoder>(call, panel);
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
