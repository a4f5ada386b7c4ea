// Decoders of the packed weight formats; quant_linear/packed.py describes the layout.
//
// A decoder walks one panel. begin_group() loads the scales of a group of input elements,
// decode() turns kUnit consecutive elements into kPanelVectors vectors each.
#pragma once

#include "simd.h"

namespace antiphon {

// The numbers are shared with cpu/library.py.
enum Format : int32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kQ4_0 = 3,
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kQ4_K = 8,
  kQ5_K = 9,
  kQ6_K = 10,
};

// A packed weight as Python hands it over.
struct Weight {
  const uint8_t* codes;
  const uint8_t* high_bits;
  const uint8_t* scales;
  const uint8_t* mins;
  int64_t rows;
  int64_t columns;
  int32_t format;
};

template <typename Scale>
inline Floats load_scales(const uint8_t* base, int64_t index) {
  if constexpr (sizeof(Scale) == 2)
    return load_halves(reinterpret_cast<const uint16_t*>(base) + index);
  else
    return load(reinterpret_cast<const float*>(base) + index);
}

template <typename Scale>
inline float scale_at(const uint8_t* base, int64_t index) {
  if constexpr (sizeof(Scale) == 2)
    return half_to_float(reinterpret_cast<const uint16_t*>(base)[index]);
  else
    return reinterpret_cast<const float*>(base)[index];
}

// Codes of 4, 5 or 8 bits with a scale, and perhaps a minimum, per group. Half is the type of
// stored scales: uint16_t for IEEE halves, float otherwise.
template <int Bits, int Centre, bool HasMin, typename Scale, int Group>
struct Quantised {
  static constexpr int kGroup = Group;
  static constexpr int kUnit = Bits == 5 ? 8 : Bits == 4 ? 2 : 1;

  const uint8_t* codes;
  const uint8_t* high_bits;
  const uint8_t* scales;
  const uint8_t* mins;
  int64_t groups;
  Floats scale[kPanelVectors];
  Floats minimum[kPanelVectors];

  Quantised(const Weight& weight, int64_t panel) {
    const int64_t elements = weight.columns * kPanel;
    codes = weight.codes + panel * (Bits == 8 ? elements : elements / 2);
    high_bits = Bits == 5 ? weight.high_bits + panel * (elements / 8) : nullptr;
    groups = weight.columns / Group;
    const int64_t bytes = panel * groups * kPanel * static_cast<int64_t>(sizeof(Scale));
    scales = weight.scales + bytes;
    mins = HasMin ? weight.mins + bytes : nullptr;
  }

  void begin_group(int64_t group) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t index = group * kPanel + v * kLanes;
      scale[v] = load_scales<Scale>(scales, index);
      if constexpr (HasMin) minimum[v] = load_scales<Scale>(mins, index);
      if constexpr (Centre != 0) minimum[v] = scale[v] * -static_cast<float>(Centre);
    }
  }

  // Asks for the memory that a later group will need: the streams of a panel are too many and
  // too short for the processor to guess.
  void prefetch(int64_t group) const {
    constexpr int kCodeBytes = Group * kPanel / (Bits == 8 ? 1 : 2);
    constexpr int kScaleBytes = kPanel * static_cast<int>(sizeof(Scale));
    for (int line = 0; line < kCodeBytes; line += 64)
      __builtin_prefetch(codes + group * kCodeBytes + line);
    if constexpr (Bits == 5)
      for (int line = 0; line < Group * kPanel / 8; line += 64)
        __builtin_prefetch(high_bits + group * Group * kPanel / 8 + line);
    for (int line = 0; line < kScaleBytes; line += 64) {
      __builtin_prefetch(scales + group * kScaleBytes + line);
      if constexpr (HasMin) __builtin_prefetch(mins + group * kScaleBytes + line);
    }
  }

  // scale * code is exact, so this rounds once, like scale * (code - centre).
  Floats value(Ints code, int v) const {
    if constexpr (HasMin || Centre != 0) return fma(to_floats(code), scale[v], minimum[v]);
    return to_floats(code) * scale[v];
  }

  template <typename Use>
  void decode(int64_t k, Use use) const {
    // Unsigned, so that the divisions below are shifts.
    decode_at(static_cast<uint64_t>(k), use);
  }

  template <typename Use>
  void decode_at(uint64_t k, Use use) const {
    if constexpr (Bits == 8) {
      const int8_t* from = reinterpret_cast<const int8_t*>(codes) + k * kPanel;
      for (int v = 0; v < kPanelVectors; ++v) use(0, v, value(widen_signed(from + v * kLanes), v));
    } else {
      Ints high[kPanelVectors];
      if constexpr (Bits == 5)
        for (int v = 0; v < kPanelVectors; ++v)
          high[v] = widen_unsigned(high_bits + k / 8 * kPanel + v * kLanes);
#pragma GCC unroll 4
      for (int u = 0; u < kUnit; u += 2)
        for (int v = 0; v < kPanelVectors; ++v) {
          const Ints pair = widen_unsigned(codes + (k + u) / 2 * kPanel + v * kLanes);
          Ints first = pair & 15, second = pair >> 4;
          if constexpr (Bits == 5) {
            first |= (u <= 4 ? high[v] << (4 - u) : high[v] >> (u - 4)) & 16;
            second |= (u < 4 ? high[v] << (3 - u) : high[v] >> (u - 3)) & 16;
          }
          use(u, v, value(first, v));
          use(u + 1, v, value(second, v));
        }
    }
  }

  float at(int64_t k, int lane) const {
    int code;
    if constexpr (Bits == 8) {
      code = static_cast<int8_t>(codes[k * kPanel + lane]);
    } else {
      code = codes[k / 2 * kPanel + lane] >> (k % 2 * 4) & 15;
      if constexpr (Bits == 5) code |= (high_bits[k / 8 * kPanel + lane] >> (k % 8) & 1) << 4;
    }
    const int64_t index = k / Group * kPanel + lane;
    const float product = static_cast<float>(code - Centre) * scale_at<Scale>(scales, index);
    return HasMin ? product + scale_at<Scale>(mins, index) : product;
  }
};

// Plain floats of 32 or 16 bits.
template <int32_t Kind>
struct Plain {
  static constexpr int kGroup = 1;
  static constexpr int kUnit = 1;
  static constexpr int kBytes = Kind == kF32 ? 4 : 2;

  const uint8_t* codes;

  Plain(const Weight& weight, int64_t panel)
      : codes(weight.codes + panel * weight.columns * kPanel * kBytes) {}

  void begin_group(int64_t) {}
  void prefetch(int64_t element) const {
    for (int line = 0; line < kPanel * kBytes; line += 64)
      __builtin_prefetch(codes + element * kPanel * kBytes + line);
  }

  template <typename Use>
  void decode(int64_t k, Use use) const {
    const uint8_t* from = codes + k * kPanel * kBytes;
    for (int v = 0; v < kPanelVectors; ++v) {
      const uint8_t* lanes = from + v * kLanes * kBytes;
      if constexpr (Kind == kF32)
        use(0, v, load(reinterpret_cast<const float*>(lanes)));
      else if constexpr (Kind == kF16)
        use(0, v, load_halves(reinterpret_cast<const uint16_t*>(lanes)));
      else
        use(0, v, load_bfloats(reinterpret_cast<const uint16_t*>(lanes)));
    }
  }

  float at(int64_t k, int lane) const {
    const int64_t index = k * kPanel + lane;
    if constexpr (Kind == kF32) return reinterpret_cast<const float*>(codes)[index];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(codes)[index];
    return Kind == kF16 ? half_to_float(bits) : bfloat_to_float(bits);
  }
};

// Calls visit with the decoder type of a format; false for an unknown one.
template <typename Visit>
inline bool with_decoder(int32_t format, Visit visit) {
  switch (format) {
    case kF32: visit.template operator()<Plain<kF32>>(); return true;
    case kF16: visit.template operator()<Plain<kF16>>(); return true;
    case kBF16: visit.template operator()<Plain<kBF16>>(); return true;
    case kQ4_0: visit.template operator()<Quantised<4, 8, false, uint16_t, 32>>(); return true;
    case kQ4_1: visit.template operator()<Quantised<4, 0, true, uint16_t, 32>>(); return true;
    case kQ5_0: visit.template operator()<Quantised<5, 16, false, uint16_t, 32>>(); return true;
    case kQ5_1: visit.template operator()<Quantised<5, 0, true, uint16_t, 32>>(); return true;
    case kQ8_0: visit.template operator()<Quantised<8, 0, false, uint16_t, 32>>(); return true;
    case kQ4_K: visit.template operator()<Quantised<4, 0, true, float, 32>>(); return true;
    case kQ5_K: visit.template operator()<Quantised<5, 0, true, float, 32>>(); return true;
    case kQ6_K: visit.template operator()<Quantised<8, 0, false, float, 16>>(); return true;
    default: return false;
  }
}

}  // namespace antiphon
