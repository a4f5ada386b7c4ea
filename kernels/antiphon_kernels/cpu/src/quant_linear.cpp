// Linear layers over packed weights, and rows of a packed embedding.
#include "formats.h"
#include "grouped_product.h"
#include "output_rows.h"
#include "pool.h"

namespace antiphon {
namespace {

// Input elements that are decoded at once: 128 x 32 floats stay in the first-level cache.
constexpr int64_t kDecodeDepth = 128;

struct Product {
  const Weight* weight;
  Input input;
  int64_t rows;
  OutputRows out;
};

// Few rows: decoded weights go straight from registers into the sums.
template <typename Decoder>
void few_rows(const Product& call, int64_t panel) {
  alignas(64) float results[kDirectRows * kPanel];
  const Decoder decoder(*call.weight, panel);
  product_of_height<1, kDirectRows>(call.rows, Direct<Decoder>{decoder}, call.input, 0,
                                    call.weight->columns / Decoder::kGroup, results, kPanel,
                                    false);
  for (int64_t row = 0; row < call.rows; ++row)
    call.out.finish(panel, row, results + row * kPanel);
}

// Many rows: the panel is decoded piece by piece and multiplied from the cache.
template <typename Decoder>
void many_rows(const Product& call, int64_t panel) {
  alignas(64) float decoded[kDecodeDepth * kPanel];
  const Decoder decoder(*call.weight, panel);
  const PanelSums sums(call.out, panel, call.rows);
  const int64_t groups = call.weight->columns / Decoder::kGroup;
  constexpr int64_t kPiece = kDecodeDepth / Decoder::kGroup;
  for (int64_t begin = 0; begin < groups; begin += kPiece) {
    const int64_t end = begin + kPiece < groups ? begin + kPiece : groups;
    const Decoded<Decoder> source(decoder, begin, end, decoded);
    grouped_product(call.rows, source, call.input, begin, end, sums.values(), sums.stride(),
                    begin > 0);
  }
  sums.finish();
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
    const Product call{weight, input, rows, {out, out_stride, bias, weight->rows}};
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
