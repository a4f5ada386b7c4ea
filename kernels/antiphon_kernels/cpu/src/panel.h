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
// Vectors side by side in a tile: so many that the sums in flight hide the latency of a
// multiply-add, and few enough for the registers.
template <int Rows>
constexpr int tile_vectors() {
  return Rows * kPanelVectors <= 2 * kTileRows ? kPanelVectors : 2;
}

// out[r][...] (+)= sum over k of x[r][k] * panel[k][...], tile_vectors<Rows>() vectors wide;
// panel rows lie 32 apart.
template <int Rows>
inline void tile_product(const float* x, int64_t x_stride, const float* panel, int64_t depth,
                         float* out, int64_t out_stride, bool accumulate) {
  Floats sums[Rows][tile_vectors<Rows>()];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < tile_vectors<Rows>(); ++v)
      sums[r][v] = accumulate ? load(out + r * out_stride + v * kLanes) : Floats{};
  for (int64_t k = 0; k < depth; ++k) {
    Floats weights[tile_vectors<Rows>()];
    for (int v = 0; v < tile_vectors<Rows>(); ++v) weights[v] = load(panel + k * kPanel + v * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const Floats value = broadcast(x[r * x_stride + k]);
      for (int v = 0; v < tile_vectors<Rows>(); ++v) sums[r][v] = fma(value, weights[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < tile_vectors<Rows>(); ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
}

template <int Rows>
inline void tile_of_height(int64_t rows, const float* x, int64_t x_stride, const float* panel,
                           int64_t depth, float* out, int64_t out_stride, bool accumulate) {
  if constexpr (Rows > 0) {
    if (rows != Rows) {
      tile_of_height<Rows - 1>(rows, x, x_stride, panel, depth, out, out_stride, accumulate);
      return;
    }
    for (int lane = 0; lane < kPanel; lane += tile_vectors<Rows>() * kLanes)
      tile_product<Rows>(x, x_stride, panel + lane, depth, out + lane, out_stride, accumulate);
  }
}

// out[r][0 .. 32) (+)= sum over k of x[r][k] * panel[k][0 .. 32), for all rows.
__attribute__((noinline)) static void panel_product(int64_t rows, const float* x,
                                                    int64_t x_stride, const float* panel,
                                                    int64_t depth, float* out,
                                                    int64_t out_stride, bool accumulate) {
  // Tiles of about one height: a small last one would leave the multipliers waiting.
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
    const int64_t height = (rows - row) / (tiles - tile);
    tile_of_height<kTileRows>(height, x + row * x_stride, x_stride, panel, depth,
                              out + row * out_stride, out_stride, accumulate);
    row += height;
  }
}

}  // namespace antiphon
