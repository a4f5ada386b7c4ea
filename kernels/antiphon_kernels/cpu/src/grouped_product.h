// Rows times a panel of weights whose scales are applied once per group of input elements.
//
// Within a group each lane adds x[k] * code[k] for k = 0, 1, 2, ... with a fused multiply-add;
// the group's sum then meets its scale and joins the total. The order is the same whatever the
// number of rows, so a row's bits do not depend on its batch.
#pragma once

#include <vector>

#include "formats.h"
#include "panel.h"
#include "pool.h"

namespace antiphon {

// Rows up to which decoded weights go straight from registers into the sums.
constexpr int kDirectRows = 8;

// The rows that are multiplied, in the form that a decoder asks for.
struct Input {
  const float* values;
  int64_t stride;
  const float* sums;  // over the elements of each group, one row of them after the other
  int64_t groups;

  Input from(int64_t row) const {
    return {values + row * stride, stride, sums + row * groups, groups};
  }
};

// Eight partial sums on every instruction set, so that all of them round alike.
typedef float Eight __attribute__((vector_size(32), aligned(4)));

template <int Group>
inline float group_sum(const float* x) {
  Eight sum = *reinterpret_cast<const Eight*>(x);
  for (int k = 8; k < Group; k += 8) sum += *reinterpret_cast<const Eight*>(x + k);
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

template <typename Decoder>
inline void prepare_row(const float* x, int64_t columns, float* values, float* sums) {
  if constexpr (Decoder::kScalesInput) {
    Eight factors;
    for (int k = 0; k < 8; ++k) factors[k] = Decoder::input_factor(k);
    for (int64_t k = 0; k < columns; k += 8)
      *reinterpret_cast<Eight*>(values + k) = *reinterpret_cast<const Eight*>(x + k) * factors;
  }
  if constexpr (Decoder::kSumsInput)
    for (int64_t group = 0; group * Decoder::kGroup < columns; ++group)
      sums[group] = group_sum<Decoder::kGroup>(x + group * Decoder::kGroup);
}

// The result is valid until the next call on this thread.
template <typename Decoder>
inline Input prepare(const float* x, int64_t stride, int64_t rows, int64_t columns, int threads) {
  if constexpr (!Decoder::kScalesInput && !Decoder::kSumsInput) return {x, stride, x, 0};
  thread_local std::vector<float> scratch;
  const int64_t groups = columns / Decoder::kGroup;
  const size_t needed = static_cast<size_t>(rows * (columns + groups));
  if (scratch.size() < needed) scratch.resize(needed);
  float* values = scratch.data();
  float* sums = values + rows * columns;
  parallel_for(rows * columns < 32 * 1024 ? 1 : threads, rows, [=](int64_t row) {
    prepare_row<Decoder>(x + row * stride, columns, values + row * columns, sums + row * groups);
  });
  return {values, columns, sums, groups};
}

// Groups [begin, end) of a panel with their codes decoded to floats in memory.
template <typename Decoder>
struct Decoded {
  static constexpr int kGroup = Decoder::kGroup;
  static constexpr bool kSumsInput = Decoder::kSumsInput;

  const Decoder& decoder;
  const int64_t begin;
  const float* codes;

  Decoded(const Decoder& from, int64_t first, int64_t last, float* memory)
      : decoder(from), begin(first), codes(memory) {
    for (int64_t group = first; group < last; ++group, memory += kGroup * kPanel)
#pragma GCC unroll 4
      for (int unit = 0; unit < kGroup / Decoder::kUnit; ++unit)
        decoder.template decode<kPanelVectors>(group, unit, 0, [&](int k, int v, Floats code) {
          store(memory + (unit * Decoder::kUnit + k) * kPanel + v * kLanes, code);
        });
  }

  void prefetch(int64_t) const {}
  static Floats start(Floats total, float input_sum) { return Decoder::start(total, input_sum); }
  Floats finish(int64_t group, int lane, Floats sum, float input_sum, Floats total) const {
    return decoder.finish(group, lane, sum, input_sum, total);
  }
  // One group's part of the product. Weights are loaded once for all rows, and one input value
  // is live at a time: the sums take nearly all registers.
  template <int Rows, int Vectors>
  void add(int64_t group, int lane, const float* x, int64_t x_stride,
           Floats (&sums)[Rows][Vectors]) const {
    const float* from = codes + (group - begin) * kGroup * kPanel + lane;
#pragma GCC unroll 2
    for (int k = 0; k < kGroup; ++k) {
      Floats weights[Vectors];
      for (int v = 0; v < Vectors; ++v) weights[v] = load(from + k * kPanel + v * kLanes);
      for (int r = 0; r < Rows; ++r) {
        const Floats value = broadcast(x[r * x_stride + k]);
        for (int v = 0; v < Vectors; ++v) sums[r][v] = fma(value, weights[v], sums[r][v]);
      }
    }
  }
};

// Groups of a panel that are decoded in registers, for few rows.
template <typename Decoder>
struct Direct {
  static constexpr int kGroup = Decoder::kGroup;
  static constexpr int kUnit = Decoder::kUnit;
  static constexpr bool kSumsInput = Decoder::kSumsInput;

  const Decoder& decoder;

  void prefetch(int64_t group) const { decoder.prefetch(group); }
  static Floats start(Floats total, float input_sum) { return Decoder::start(total, input_sum); }
  Floats finish(int64_t group, int lane, Floats sum, float input_sum, Floats total) const {
    return decoder.finish(group, lane, sum, input_sum, total);
  }
  template <int Rows, int Vectors>
  void add(int64_t group, int lane, const float* x, int64_t x_stride,
           Floats (&sums)[Rows][Vectors]) const {
    const auto add_unit = [&](int unit) {
      decoder.template decode<Vectors>(group, unit, lane, [&](int k, int v, Floats code) {
        for (int r = 0; r < Rows; ++r)
          sums[r][v] = fma(broadcast(x[r * x_stride + unit * kUnit + k]), code, sums[r][v]);
      });
    };
    if constexpr (Rows * kUnit <= 8) {
#pragma GCC unroll 4
      for (int unit = 0; unit < kGroup / kUnit; ++unit) add_unit(unit);
    } else {
      // Long enough as it is, for the processor and for the compiler.
#pragma GCC unroll 1
      for (int unit = 0; unit < kGroup / kUnit; ++unit) add_unit(unit);
    }
  }
};

// out[r][lane ...] (+)= the products of groups [begin, end), Vectors vectors wide.
template <int Rows, int Vectors, typename Source>
inline void grouped_tile(const Source& source, const Input& input, int64_t begin, int64_t end,
                         int lane, float* out, int64_t out_stride, bool accumulate) {
  Floats totals[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      totals[r][v] = accumulate ? load(out + r * out_stride + lane + v * kLanes) : Floats{};
  for (int64_t group = begin; group < end; ++group) {
    if (lane == 0) source.prefetch(group + kPrefetchElements / Source::kGroup);
    float input_sums[Rows] = {};
    if constexpr (Source::kSumsInput)
      for (int r = 0; r < Rows; ++r) input_sums[r] = input.sums[r * input.groups + group];
    Floats sums[Rows][Vectors];
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) sums[r][v] = Source::start(totals[r][v], input_sums[r]);
    const float* x = input.values + group * Source::kGroup;
    source.template add<Rows, Vectors>(group, lane, x, input.stride, sums);
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v)
        totals[r][v] = source.finish(group, lane + v * kLanes, sums[r][v], input_sums[r],
                                     totals[r][v]);
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      store(out + r * out_stride + lane + v * kLanes, totals[r][v]);
}

// A tile of Lowest to Rows rows and all 32 lanes.
template <int Lowest, int Rows, typename Source>
inline void product_of_height(int64_t rows, const Source& source, const Input& input,
                              int64_t begin, int64_t end, float* out, int64_t out_stride,
                              bool accumulate) {
  if constexpr (Rows >= Lowest) {
    if (rows != Rows) {
      product_of_height<Lowest, Rows - 1>(rows, source, input, begin, end, out, out_stride,
                                          accumulate);
      return;
    }
    constexpr int kVectors = Rows <= kTileRows ? tile_vectors<Rows>() : 1;
    for (int lane = 0; lane < kPanel; lane += kVectors * kLanes)
      grouped_tile<Rows, kVectors>(source, input, begin, end, lane, out, out_stride, accumulate);
  }
}

// More than kDirectRows rows, in tiles of about one height: a small last one would leave the
// multipliers waiting.
template <typename Source>
inline void grouped_product(int64_t rows, const Source& source, const Input& input, int64_t begin,
                            int64_t end, float* out, int64_t out_stride, bool accumulate) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
    const int64_t height = (rows - row) / (tiles - tile);
    product_of_height<kTileRows / 2, kTileRows>(height, source, input.from(row), begin, end,
                                                out + row * out_stride, out_stride, accumulate);
    row += height;
  }
}

}  // namespace antiphon
