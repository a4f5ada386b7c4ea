// Rounded rows times a panel of weights: integer sums over each group of input elements.
//
// A group's codes meet the row's rounded inputs in 32-bit integers, exactly: first their high
// bytes, then, eight bits lower, their low ones. The sum then meets
// both scales and joins the total in fp32, group after group, whatever the number of rows: a
// row's bits do not depend on its batch.
#pragma once

#include <vector>

#include "byte_dot.h"
#include "formats.h"
#include "pool.h"

namespace antiphon {

#if defined(__AVX512F__)
constexpr int kByteTileRows = 6;
#else
constexpr int kByteTileRows = 3;
#endif
// Rows up to which codes go straight from registers into the sums.
constexpr int kDirectByteRows = 8;
// Input elements whose codes are unpacked at once: 24 KiB for a panel, which the first-level
// cache holds.
constexpr int64_t kUnpackDepth = 768;

// What the sum of a row's rounded inputs over a group contributes: minus the centre of the codes
// as an integer, or, for the minimums, the sum in units of the input.
union Correction {
  int32_t start;
  float input_sum;
};

// Rounded rows in the form that a decoder asks for. A row's codes are its high bytes, then its
// low ones.
struct RoundedRows {
  const int8_t* codes;  // 2 columns apart
  const float* scales;  // columns / 32 apart
  const Correction* corrections;  // groups apart
  int64_t columns, groups;

  RoundedRows from(int64_t row) const {
    return {codes + row * 2 * columns, scales + row * (columns / kRounded),
            corrections + row * groups, columns, groups};
  }
};

template <typename Decoder>
inline void round_row(const float* x, int64_t columns, int8_t* codes, float* scales,
                      Correction* corrections) {
  constexpr int kGroup = Decoder::kGroup;
  for (int64_t block = 0; block < columns / kRounded; ++block) {
    int8_t* high = codes + block * kRounded;
    int8_t* low = high + columns;
    scales[block] = round_block(x + block * kRounded, high, low);
    for (int part = 0; part < kRounded / kGroup; ++part) {
      int32_t sum = 0;
      for (int k = part * kGroup; k < (part + 1) * kGroup; ++k) sum += high[k] * 256 + low[k];
      Correction& correction = corrections[block * (kRounded / kGroup) + part];
      if constexpr (Decoder::kHasMin)
        correction.input_sum = static_cast<float>(sum) * scales[block];
      else
        correction.start = -Decoder::kByteCentre * sum;
    }
  }
}

// The result is valid until the next call on this thread.
template <typename Decoder>
inline RoundedRows round_rows(const float* x, int64_t stride, int64_t rows, int64_t columns,
                              int threads) {
  thread_local std::vector<int8_t> codes;
  thread_local std::vector<float> scales;
  thread_local std::vector<Correction> corrections;
  const int64_t blocks = columns / kRounded, groups = columns / Decoder::kGroup;
  const auto reserve = [](auto& memory, int64_t size) {
    if (memory.size() < static_cast<size_t>(size)) memory.resize(static_cast<size_t>(size));
    return memory.data();
  };
  int8_t* to = reserve(codes, rows * 2 * columns);
  float* factors = reserve(scales, rows * blocks);
  Correction* sums = reserve(corrections, rows * groups);
  parallel_for(rows * columns < 32 * 1024 ? 1 : threads, rows, [=](int64_t row) {
    round_row<Decoder>(x + row * stride, columns, to + row * 2 * columns, factors + row * blocks,
                       sums + row * groups);
  });
  return {to, factors, sums, columns, groups};
}

// Groups of a panel whose codes are unpacked in registers, for few rows.
template <typename Decoder>
struct Packed {
  typedef Decoder Format;
  static constexpr bool kUnpacks = true;
  const Decoder& decoder;

  void prefetch(int64_t group) const {
    decoder.prefetch(group + kPrefetchElements / Decoder::kGroup);
  }
  Words bytes(int64_t group, int quad, int lane) const {
    return decoder.bytes(group, quad, lane);
  }
  Floats scales(int64_t group, int lane) const { return decoder.scales_of(group, lane); }
  Floats mins(int64_t group, int lane) const { return decoder.mins_of(group, lane); }
};

// Groups [begin, end) of a panel, unpacked in memory for many rows.
template <typename Decoder>
struct Unpacked {
  typedef Decoder Format;
  static constexpr bool kUnpacks = false;
  static constexpr int kGroup = Decoder::kGroup;
  static constexpr int64_t kWords = kUnpackDepth / 4 * kPanel;
  static constexpr int64_t kFactors = kUnpackDepth / kGroup * kPanel;

  alignas(64) uint32_t words[kWords];
  alignas(64) float factors[kFactors];
  alignas(64) float offsets[Decoder::kHasMin ? kFactors : 1];
  int64_t begin;

  void unpack(const Decoder& decoder, int64_t first, int64_t last) {
    begin = first;
    for (int64_t group = first; group < last; ++group)
      for (int lane = 0; lane < kPanel; lane += kLanes) {
        const int64_t at = (group - first) * kPanel + lane;
        store(factors + at, decoder.scales_of(group, lane));
        if constexpr (Decoder::kHasMin) store(offsets + at, decoder.mins_of(group, lane));
#pragma GCC unroll 8
        for (int quad = 0; quad < kGroup / 4; ++quad)
          store_words(words + ((group - first) * (kGroup / 4) + quad) * kPanel + lane,
                      decoder.bytes(group, quad, lane));
      }
  }
  void prefetch(int64_t) const {}
  Words bytes(int64_t group, int quad, int lane) const {
    return load_words(words + ((group - begin) * (kGroup / 4) + quad) * kPanel + lane);
  }
  Floats scales(int64_t group, int lane) const {
    return load(factors + (group - begin) * kPanel + lane);
  }
  Floats mins(int64_t group, int lane) const {
    return load(offsets + (group - begin) * kPanel + lane);
  }
};

// out[r][lane ...] (+)= the products of groups [begin, end), Vectors vectors wide.
template <int Rows, int Vectors, typename Source>
inline void byte_tile(const Source& source, const RoundedRows& input, int64_t begin, int64_t end,
                      int lane, float* out, int64_t out_stride, bool accumulate) {
  typedef typename Source::Format Format;
  constexpr int kGroup = Format::kGroup;
  constexpr int kQuads = kGroup / 4;
  Floats totals[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      totals[r][v] = accumulate ? load(out + r * out_stride + lane + v * kLanes) : Floats{};
  for (int64_t group = begin; group < end; ++group) {
    if (lane == 0) source.prefetch(group);
    Ints sums[Rows][Vectors] = {};
    Words unpacked[Source::kUnpacks ? kQuads : 1][Vectors];
    if constexpr (Source::kUnpacks)
#pragma GCC unroll 8
      for (int quad = 0; quad < kQuads; ++quad)
        for (int v = 0; v < Vectors; ++v)
          unpacked[quad][v] = source.bytes(group, quad, lane + v * kLanes);
    const auto add = [&](const int8_t* x) {
#pragma GCC unroll 8
      for (int quad = 0; quad < kQuads; ++quad) {
        Words codes[Vectors];
        for (int v = 0; v < Vectors; ++v)
          codes[v] = Source::kUnpacks ? unpacked[quad][v]
                                      : source.bytes(group, quad, lane + v * kLanes);
        for (int r = 0; r < Rows; ++r) {
          const Words four = broadcast_word(x + r * 2 * input.columns + quad * 4);
          for (int v = 0; v < Vectors; ++v)
            sums[r][v] = dot_bytes<Format::kByteBits>(sums[r][v], codes[v], four);
        }
      }
    };
    add(input.codes + group * kGroup);
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) {
        sums[r][v] <<= 8;
        if constexpr (!Format::kHasMin)
          sums[r][v] += broadcast_int(input.corrections[r * input.groups + group].start);
      }
    add(input.codes + input.columns + group * kGroup);
    const int64_t block = group * kGroup / kRounded;
    for (int v = 0; v < Vectors; ++v) {
      const Floats scales = source.scales(group, lane + v * kLanes);
      for (int r = 0; r < Rows; ++r) {
        const Floats scale = broadcast(input.scales[r * (input.columns / kRounded) + block]);
        totals[r][v] = fma(to_floats(sums[r][v]) * scale, scales, totals[r][v]);
      }
      if constexpr (Format::kHasMin) {
        const Floats mins = source.mins(group, lane + v * kLanes);
        for (int r = 0; r < Rows; ++r)
          totals[r][v] = fma(broadcast(input.corrections[r * input.groups + group].input_sum),
                             mins, totals[r][v]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      store(out + r * out_stride + lane + v * kLanes, totals[r][v]);
}

// A tile of Lowest to Rows rows and all 32 lanes.
template <int Lowest, int Rows, typename Source>
inline void byte_product_of_height(int64_t rows, const Source& source, const RoundedRows& input,
                                   int64_t begin, int64_t end, float* out, int64_t out_stride,
                                   bool accumulate) {
  if constexpr (Rows >= Lowest) {
    if (rows != Rows) {
      byte_product_of_height<Lowest, Rows - 1>(rows, source, input, begin, end, out, out_stride,
                                               accumulate);
      return;
    }
    constexpr int kVectors = Rows <= kByteTileRows ? 2 : 1;
    for (int lane = 0; lane < kPanel; lane += kVectors * kLanes)
      byte_tile<Rows, kVectors>(source, input, begin, end, lane, out, out_stride, accumulate);
  }
}

// More than kDirectByteRows rows, in tiles of about one height.
template <typename Source>
inline void byte_product(int64_t rows, const Source& source, const RoundedRows& input,
                         int64_t begin, int64_t end, float* out, int64_t out_stride,
                         bool accumulate) {
  const int64_t tiles = (rows + kByteTileRows - 1) / kByteTileRows;
  for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
    const int64_t height = (rows - row) / (tiles - tile);
    byte_product_of_height<kByteTileRows / 2, kByteTileRows>(
        height, source, input.from(row), begin, end, out + row * out_stride, out_stride,
        accumulate);
    row += height;
  }
}

}  // namespace antiphon
