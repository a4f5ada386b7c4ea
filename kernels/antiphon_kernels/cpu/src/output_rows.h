// Where the results of a product go, shared by its float32 and its int16 arithmetic.
#pragma once

#include <memory>

#include "simd.h"

namespace antiphon {

struct OutputRows {
  float* values;
  int64_t stride;
  const float* bias;  // or null
  int64_t columns;    // output channels of the weight

  // Writes a panel's 32 results of a row, or the ones that exist in the last panel.
  void finish(int64_t panel, int64_t row, const float* sums) const {
    const int64_t first = panel * kPanel;
    const int64_t left = columns - first;
    const int64_t count = left < kPanel ? left : kPanel;
    float* to = values + row * stride + first;
    if (bias != nullptr)
      for (int64_t lane = 0; lane < count; ++lane) to[lane] = sums[lane] + bias[first + lane];
    else if (to != sums)
      std::memcpy(to, sums, static_cast<size_t>(count) * sizeof(float));
  }
};

// Memory for a panel's 32 running results of every row: the output itself where the panel is
// whole, so that they are only copied at the edge.
class PanelSums {
 public:
  PanelSums(const OutputRows& out, int64_t panel, int64_t rows)
      : out_(out), panel_(panel), rows_(rows), whole_((panel + 1) * kPanel <= out.columns),
        edge_(whole_ ? nullptr : new float[rows * kPanel]) {}

  float* values() const { return whole_ ? out_.values + panel_ * kPanel : edge_.get(); }
  int64_t stride() const { return whole_ ? out_.stride : kPanel; }

  void finish() const {
    if (whole_ && out_.bias == nullptr) return;
    for (int64_t row = 0; row < rows_; ++row)
      out_.finish(panel_, row, values() + row * stride());
  }

 private:
  const OutputRows& out_;
  const int64_t panel_, rows_;
  const bool whole_;
  const std::unique_ptr<float[]> edge_;
};

}  // namespace antiphon
