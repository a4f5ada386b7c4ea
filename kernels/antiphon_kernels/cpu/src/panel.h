// The one product of all matrix kernels: rows times a panel of 32 output channels.
//
// Each output is one lane that adds x[k] * w[k] for k = 0, 1, 2, ... with a fused multiply-add.
// The order is the same for every tile height, so a row's bits do not depend on its batch.
#pragma once

#include "simd.h"

namespace antiphon {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kTileVectors = 2;

// out[r][0 .. 2 kLanes) (+)= sum over k of x[r][k] * panel[k][...]; panel rows lie 32 apart.
template <int Rows>
inline void tile_product(const float* x, int64_t x_stride, const float* panel, int64_t depth,
                         float* out, int64_t out_stride, bool accumulate) {
  Floats sums[Rows][kTileVectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kTileVectors; ++v)
      sums[r][v] = accumulate ? load(out + r * out_stride + v * kLanes) : Floats{};
  for (int64_t k = 0; k < depth; ++k) {
    Floats weights[kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) weights[v] = load(panel + k * kPanel + v * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const Floats value = broadcast(x[r * x_stride + k]);
      for (int v = 0; v < kTileVectors; ++v) sums[r][v] = fma(value, weights[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kTileVectors; ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
}

template <int Rows>
inline void tile_of_height(int64_t rows, const float* x, int64_t x_stride, const float* panel,
                           int64_t depth, float* out, int64_t out_stride, bool accumulate) {
  if constexpr (Rows > 0) {
    if (rows == Rows)
      tile_product<Rows>(x, x_stride, panel, depth, out, out_stride, accumulate);
    else
      tile_of_height<Rows - 1>(rows, x, x_stride, panel, depth, out, out_stride, accumulate);
  }
}

// out[r][0 .. 32) (+)= sum over k of x[r][k] * panel[k][0 .. 32), for all rows.
__attribute__((noinline)) static void panel_product(int64_t rows, const float* x, int64_t x_stride, const float* panel,
                          int64_t depth, float* out, int64_t out_stride, bool accumulate) {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    const int64_t height = rows - row < kTileRows ? rows - row : kTileRows;
    for (int lane = 0; lane < kPanel; lane += kTileVectors * kLanes)
      tile_of_height<kTileRows>(height, x + row * x_stride, x_stride, panel + lane, depth,
                                out + row * out_stride + lane, out_stride, accumulate);
  }
}

}  // namespace antiphon
