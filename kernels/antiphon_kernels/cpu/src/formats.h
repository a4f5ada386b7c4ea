// Decoders of the packed weight formats; quant_linear/packed.py describes the layout.
//
// A decoder reads one panel. decode() turns the codes of kUnit input elements into floats,
// start() and finish() bracket the sum of products of a group of elements: scales enter once
// per group and minimums meet the sum of the group's inputs.
#pragma once

#include "simd.h"

namespace antiphon {

// How far few rows ask for memory ahead of its use. Panels lie behind each other, so the
// distance runs on into the next one.
constexpr int64_t kPrefetchElements = 128;

// The numbers are shared with cpu/signatures.py.
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

// Where the low four bits of element k of 8 lie in its word: the first four elements have the
// low nibbles of the bytes and the others the high ones.
constexpr int nibble_bit(int64_t k) { return static_cast<int>(k % 4 * 8 + k / 4 * 4); }

// Where the fifth bit of element k of 32 lies in its word: at one distance from where decode()
// wants it for each unit of eight.
constexpr int fifth_bit(int64_t k) { return nibble_bit(k % 8) + static_cast<int>(k / 8); }

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

// Codes of 4, 5 or 8 bits with a scale, and perhaps a minimum, per group. Scale is the type of
// stored scales: uint16_t for IEEE halves, float otherwise.
template <int Bits, int Centre, bool HasMin, typename Scale, int Group>
struct Quantised {
  static_assert(Bits != 5 || Group == 32, "fifth bits lie in words of 32 elements");
  static constexpr int kGroup = Group;
  static constexpr int kUnit = Bits == 8 ? 4 : 8;
  static constexpr bool kHasMin = HasMin;
  static constexpr bool kScalesInput = Bits != 8;
  static constexpr bool kSumsInput = HasMin || Centre != 0;
  // Of the unsigned bytes that bytes() gives.
  static constexpr int kByteBits = Bits;
  static constexpr int kByteCentre = Bits == 8 ? 128 : Centre;

  const uint8_t* codes;
  const uint32_t* high_bits;
  const uint8_t* scales;
  const uint8_t* mins;

  Quantised(const Weight& weight, int64_t panel) {
    const int64_t elements = weight.columns * kPanel;
    codes = weight.codes + panel * (Bits == 8 ? elements : elements / 2);
    high_bits = Bits == 5 ? reinterpret_cast<const uint32_t*>(weight.high_bits) +
                                panel * (elements / 32)
                          : nullptr;
    const int64_t bytes = panel * elements / Group * static_cast<int64_t>(sizeof(Scale));
    scales = weight.scales + bytes;
    mins = HasMin ? weight.mins + bytes : nullptr;
  }

  // A code is masked where it lies in its word, which makes it a power of two too large; the
  // input is divided by that power beforehand. A code at the top of its word is shifted, for
  // the conversion is a signed one.
  static float input_factor(int64_t k) {
    if (Bits == 8) return 1.0f;
    const int64_t place = Bits == 5 ? k % 4 * 8 : nibble_bit(k % 8);
    if (place == 32 - kStep) return 1.0f;
    return 1.0f / static_cast<float>(1u << place);
  }

  // Asks for the memory that a later group will need: the streams of a panel are too many and
  // too short for the processor to guess.
  void prefetch(int64_t group) const {
    constexpr int kCodeBytes = Group * kPanel / (Bits == 8 ? 1 : 2);
    constexpr int kScaleBytes = kPanel * static_cast<int>(sizeof(Scale));
    for (int line = 0; line < kCodeBytes; line += 64)
      __builtin_prefetch(codes + group * kCodeBytes + line);
    if constexpr (Bits == 5)
      for (int line = 0; line < kPanel; line += 16)
        __builtin_prefetch(high_bits + group * kPanel + line);
    for (int line = 0; line < kScaleBytes; line += 64) {
      __builtin_prefetch(scales + group * kScaleBytes + line);
      if constexpr (HasMin) __builtin_prefetch(mins + group * kScaleBytes + line);
    }
  }

  // What a group's sum of products begins with, for an input whose sum over the group is given.
  static Floats start(Floats, float input_sum) {
    return Centre != 0 ? broadcast(input_sum * -static_cast<float>(Centre)) : Floats{};
  }

  // Adds a group's sum of products to the total.
  Floats finish(int64_t group, int lane, Floats sum, float input_sum, Floats total) const {
    const int64_t index = group * kPanel + lane;
    total = fma(sum, load_scales<Scale>(scales, index), total);
    if constexpr (HasMin)
      total = fma(broadcast(input_sum), load_scales<Scale>(mins, index), total);
    return total;
  }

  Floats scales_of(int64_t group, int lane) const {
    return load_scales<Scale>(scales, group * kPanel + lane);
  }
  Floats mins_of(int64_t group, int lane) const {
    return load_scales<Scale>(mins, group * kPanel + lane);
  }

  // Elements 4 quad to 4 quad + 3 of a group as the unsigned bytes of each channel's lane.
  Words bytes(int64_t group, int quad, int lane) const {
    if constexpr (Bits == 8)
      return load_words(words(group * (Group / 4) + quad) + lane) ^ 0x80808080u;
    const int unit = quad / 2;
    const Words both = load_words(words(group * (Group / 8) + unit) + lane);
    const Words low = (quad % 2 == 0 ? both : both >> 4) & 0x0f0f0f0fu;
    if constexpr (Bits == 4) return low;
    const Words high = load_words(high_bits + group * kPanel + lane);
    return low | ((quad % 2 == 0 ? high << (4 - unit) : high >> unit) & 0x10101010u);
  }

  template <int Vectors, typename Use>
  void decode(int64_t group, int unit, int lane, Use use) const {
    const uint32_t* from = words(group * (Group / kUnit) + unit) + lane;
    Words low[Vectors];
    for (int v = 0; v < Vectors; ++v) low[v] = load_words(from + v * kLanes);
    if constexpr (Bits == 8) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        for (int v = 0; v < Vectors; ++v)
          use(k, v, to_floats((Ints)(low[v] << (24 - 8 * k)) >> 24));
    } else if constexpr (Bits == 4) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k)
        for (int v = 0; v < Vectors; ++v) use(k, v, to_floats(in_place(low[v], nibble_bit(k))));
    } else {
      Words whole[2][Vectors];
      for (int v = 0; v < Vectors; ++v) {
        const Words high = load_words(high_bits + group * kPanel + lane + v * kLanes);
        whole[0][v] = (low[v] & 0x0f0f0f0fu) | (high << (4 - unit) & 0x10101010u);
        whole[1][v] = (low[v] >> 4 & 0x0f0f0f0fu) | (high >> unit & 0x10101010u);
      }
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k)
        for (int v = 0; v < Vectors; ++v)
          use(k, v, to_floats(in_place(whole[k / 4][v], k % 4 * 8)));
    }
  }

  float at(int64_t k, int lane) const {
    int code;
    if constexpr (Bits == 8) {
      code = static_cast<int8_t>(words(k / 4)[lane] >> k % 4 * 8);
    } else {
      code = words(k / 8)[lane] >> nibble_bit(k % 8) & 15;
      if constexpr (Bits == 5)
        code |= (high_bits[k / 32 * kPanel + lane] >> fifth_bit(k % 32) & 1) << 4;
    }
    const int64_t index = k / Group * kPanel + lane;
    const float product = static_cast<float>(code - Centre) * scale_at<Scale>(scales, index);
    return HasMin ? product + scale_at<Scale>(mins, index) : product;
  }

 private:
  // Distance of the fields that decode() masks.
  static constexpr int kStep = Bits == 5 ? 8 : 4;

  const uint32_t* words(int64_t unit) const {
    return reinterpret_cast<const uint32_t*>(codes) + unit * kPanel;
  }

  // The field of kStep bits at a place of each word, see input_factor().
  static Ints in_place(Words value, int place) {
    constexpr uint32_t kMask = (1u << kStep) - 1;
    if (place == 32 - kStep) return (Ints)(value >> (32 - kStep));
    return (Ints)(value & (kMask << place));
  }
};

// Plain floats of 32 or 16 bits: a group of one element and no scale, so that the total itself
// is what grows.
template <int32_t Kind>
struct Plain {
  static constexpr int kGroup = 1;
  static constexpr int kUnit = 1;
  static constexpr bool kScalesInput = false;
  static constexpr bool kSumsInput = false;
  static constexpr int kBytes = Kind == kF32 ? 4 : 2;

  const uint8_t* codes;

  Plain(const Weight& weight, int64_t panel)
      : codes(weight.codes + panel * weight.columns * kPanel * kBytes) {}

  static float input_factor(int64_t) { return 1.0f; }
  void prefetch(int64_t element) const {
    for (int line = 0; line < kPanel * kBytes; line += 64)
      __builtin_prefetch(codes + element * kPanel * kBytes + line);
  }
  static Floats start(Floats total, float) { return total; }
  Floats finish(int64_t, int, Floats sum, float, Floats) const { return sum; }

  template <int Vectors, typename Use>
  void decode(int64_t element, int, int lane, Use use) const {
    const uint8_t* from = codes + (element * kPanel + lane) * kBytes;
    for (int v = 0; v < Vectors; ++v) {
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

// Calls visit with the decoder type of a format with codes and scales; false for another.
template <typename Visit>
inline bool with_quantised(int32_t format, Visit visit) {
  switch (format) {
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

// The same for every format; false for an unknown one.
template <typename Visit>
inline bool with_decoder(int32_t format, Visit visit) {
  switch (format) {
    case kF32: visit.template operator()<Plain<kF32>>(); return true;
    case kF16: visit.template operator()<Plain<kF16>>(); return true;
    case kBF16: visit.template operator()<Plain<kBF16>>(); return true;
    default: return with_quantised(format, visit);
  }
}

}  // namespace antiphon
