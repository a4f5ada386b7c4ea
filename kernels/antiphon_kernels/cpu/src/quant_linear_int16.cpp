// Linear layers over packed weights with rounded activations.
#include <memory>

#include "integer_product.h"
#include "output_rows.h"
#include "pool.h"

namespace antiphon {
namespace {

template <typename Decoder>
void few_rows(const Decoder& decoder, const RoundedRows& input, int64_t rows,
              const OutputRows& out, int64_t panel) {
  alignas(64) float results[kDirectByteRows * kPanel];
  byte_product_of_height<1, kDirectByteRows>(rows, Packed<Decoder>{decoder}, input, 0,
                                             input.groups, results, kPanel, false);
  for (int64_t row = 0; row < rows; ++row) out.finish(panel, row, results + row * kPanel);
}

template <typename Decoder>
void many_rows(const Decoder& decoder, const RoundedRows& input, int64_t rows,
               const OutputRows& out, int64_t panel) {
  Unpacked<Decoder> source;
  const PanelSums sums(out, panel, rows);
  constexpr int64_t kPiece = kUnpackDepth / Decoder::kGroup;
  for (int64_t begin = 0; begin < input.groups; begin += kPiece) {
    const int64_t end = begin + kPiece < input.groups ? begin + kPiece : input.groups;
    source.unpack(decoder, begin, end);
    byte_product(rows, source, input, begin, end, sums.values(), sums.stride(), begin > 0);
  }
  sums.finish();
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

// As antiphon_quant_linear. Returns 0, or 1 for a format without integer codes.
ANTIPHON_EXPORT int antiphon_quant_linear_int16(const Weight* weight, const float* x,
                                               int64_t x_stride, int64_t rows, const float* bias,
                                               float* out, int64_t out_stride, int threads) {
  const int64_t panels = (weight->rows + kPanel - 1) / kPanel;
  const int64_t work = panels * kPanel * weight->columns * rows;
  const int team = work < 256 * 1024 || panels < 2 ? 1 : threads;
  const OutputRows to{out, out_stride, bias, weight->rows};
  const bool known = with_quantised(weight->format, [&]<typename Decoder>() {
    const RoundedRows input = round_rows<Decoder>(x, x_stride, rows, weight->columns, team);
    parallel_for(team, panels, [&](int64_t panel) {
      const Decoder decoder(*weight, panel);
      if (rows <= kDirectByteRows)
        few_rows(decoder, input, rows, to, panel);
      else
        many_rows(decoder, input, rows, to, panel);
    });
  });
  return known ? 0 : 1;
}
