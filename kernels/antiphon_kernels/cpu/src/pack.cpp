// Packing GGUF blocks into panels; quant_linear/formats.py is the readable definition.
#include "formats.h"
#include "pool.h"

namespace antiphon {
namespace {

// What one block holds: codes in the order of the input, scales and minimums of its groups.
// Halves are kept as they are, products are floats.
struct Block {
  uint8_t codes[256];
  uint32_t scales[16];
  uint32_t mins[16];
};

inline uint16_t half_at(const uint8_t* from) {
  return static_cast<uint16_t>(from[0] | from[1] << 8);
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// All low nibbles, then all high ones.
inline void split_nibbles(const uint8_t* from, int bytes, uint8_t* to) {
  for (int i = 0; i < bytes; ++i) {
    to[i] = from[i] & 15;
    to[bytes + i] = from[i] >> 4;
  }
}

inline void add_fifth_bits(const uint8_t* mask, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= (mask[i / 8] >> i % 8 & 1) << 4;
}

// Scales and minimums of the eight sub-blocks of Q4_K and Q5_K.
inline void k_scales(const uint8_t* from, Block& block) {
  const float d = half_to_float(half_at(from)), d_min = half_to_float(half_at(from + 2));
  const uint8_t* s = from + 4;
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    block.scales[j] = bits_of(d * static_cast<float>(scale));
    block.mins[j] = bits_of(-(d_min * static_cast<float>(minimum)));
  }
}

template <int32_t Kind>
struct Source;

template <>
struct Source<kQ4_0> {
  static constexpr int kElements = 32, kBytes = 18, kBits = 4, kGroup = 32, kScaleBytes = 2;
  static constexpr bool kMins = false;
  static void read(const uint8_t* from, Block& block) {
    block.scales[0] = half_at(from);
    split_nibbles(from + 2, 16, block.codes);
  }
};

template <>
struct Source<kQ4_1> {
  static constexpr int kElements = 32, kBytes = 20, kBits = 4, kGroup = 32, kScaleBytes = 2;
  static constexpr bool kMins = true;
  static void read(const uint8_t* from, Block& block) {
    block.scales[0] = half_at(from);
    block.mins[0] = half_at(from + 2);
    split_nibbles(from + 4, 16, block.codes);
  }
};

template <>
struct Source<kQ5_0> {
  static constexpr int kElements = 32, kBytes = 22, kBits = 5, kGroup = 32, kScaleBytes = 2;
  static constexpr bool kMins = false;
  static void read(const uint8_t* from, Block& block) {
    block.scales[0] = half_at(from);
    split_nibbles(from + 6, 16, block.codes);
    add_fifth_bits(from + 2, block.codes);
  }
};

template <>
struct Source<kQ5_1> {
  static constexpr int kElements = 32, kBytes = 24, kBits = 5, kGroup = 32, kScaleBytes = 2;
  static constexpr bool kMins = true;
  static void read(const uint8_t* from, Block& block) {
    block.scales[0] = half_at(from);
    block.mins[0] = half_at(from + 2);
    split_nibbles(from + 8, 16, block.codes);
    add_fifth_bits(from + 4, block.codes);
  }
};

template <>
struct Source<kQ8_0> {
  static constexpr int kElements = 32, kBytes = 34, kBits = 8, kGroup = 32, kScaleBytes = 2;
  static constexpr bool kMins = false;
  static void read(const uint8_t* from, Block& block) {
    block.scales[0] = half_at(from);
    std::memcpy(block.codes, from + 2, 32);
  }
};

template <>
struct Source<kQ4_K> {
  static constexpr int kElements = 256, kBytes = 144, kBits = 4, kGroup = 32, kScaleBytes = 4;
  static constexpr bool kMins = true;
  static void read(const uint8_t* from, Block& block) {
    k_scales(from, block);
    for (int p = 0; p < 4; ++p) split_nibbles(from + 16 + 32 * p, 32, block.codes + 64 * p);
  }
};

template <>
struct Source<kQ5_K> {
  static constexpr int kElements = 256, kBytes = 176, kBits = 5, kGroup = 32, kScaleBytes = 4;
  static constexpr bool kMins = true;
  static void read(const uint8_t* from, Block& block) {
    k_scales(from, block);
    for (int p = 0; p < 4; ++p) split_nibbles(from + 48 + 32 * p, 32, block.codes + 64 * p);
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < 32; ++i) block.codes[32 * j + i] |= (from[16 + i] >> j & 1) << 4;
  }
};

template <>
struct Source<kQ6_K> {
  static constexpr int kElements = 256, kBytes = 210, kBits = 8, kGroup = 16, kScaleBytes = 4;
  static constexpr bool kMins = false;
  static void read(const uint8_t* from, Block& block) {
    const float d = half_to_float(half_at(from + 208));
    for (int j = 0; j < 16; ++j)
      block.scales[j] = bits_of(d * static_cast<float>(static_cast<int8_t>(from[192 + j])));
    for (int half = 0; half < 2; ++half) {
      uint8_t* codes = block.codes + 128 * half;
      split_nibbles(from + 64 * half, 64, codes);
      for (int i = 0; i < 128; ++i) {
        const int high = from[128 + 32 * half + i % 32] >> (i / 32 * 2) & 3;
        codes[i] = static_cast<uint8_t>((codes[i] | high << 4) - 32);
      }
    }
  }
};

template <int ScaleBytes>
inline void write_scale(uint8_t* base, int64_t index, uint32_t bits) {
  std::memcpy(base + index * ScaleBytes, &bits, ScaleBytes);
}

// The 32 blocks of one column of a panel, written element by element.
template <typename S>
inline void write_blocks(const Block* blocks, int64_t panel, int64_t columns, int64_t first,
                         const Weight& to) {
  constexpr int kGroups = S::kElements / S::kGroup;
  uint8_t* codes = const_cast<uint8_t*>(to.codes) +
                   (panel * columns + first) * kPanel / (S::kBits == 8 ? 1 : 2);
  // Four whole codes to a word, or eight low parts of them.
  constexpr int kPerWord = S::kBits == 8 ? 4 : 8;
  uint32_t* words = reinterpret_cast<uint32_t*>(codes);
  for (int k = 0; k < S::kElements; k += kPerWord, words += kPanel)
    for (int lane = 0; lane < kPanel; ++lane) {
      uint32_t word = 0;
      for (int i = 0; i < kPerWord; ++i) {
        const uint32_t code = blocks[lane].codes[k + i];
        word |= S::kBits == 8 ? code << 8 * i : (code & 15) << nibble_bit(i);
      }
      words[lane] = word;
    }
  if constexpr (S::kBits == 5) {
    uint32_t* high = reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(to.high_bits)) +
                     (panel * columns + first) / 32 * kPanel;
    for (int k = 0; k < S::kElements; k += 32, high += kPanel)
      for (int lane = 0; lane < kPanel; ++lane) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; ++i)
          bits |= static_cast<uint32_t>(blocks[lane].codes[k + i] >> 4) << fifth_bit(i);
        high[lane] = bits;
      }
  }
  const int64_t index = (panel * columns + first) / S::kGroup * kPanel;
  for (int group = 0; group < kGroups; ++group)
    for (int lane = 0; lane < kPanel; ++lane) {
      const int64_t at = index + group * kPanel + lane;
      write_scale<S::kScaleBytes>(const_cast<uint8_t*>(to.scales), at, blocks[lane].scales[group]);
      if constexpr (S::kMins)
        write_scale<S::kScaleBytes>(const_cast<uint8_t*>(to.mins), at, blocks[lane].mins[group]);
    }
}

template <int32_t Kind>
int pack_all(const uint8_t* data, const Weight& to, int threads) {
  typedef Source<Kind> S;
  const int64_t blocks_per_row = to.columns / S::kElements;
  const int64_t row_bytes = blocks_per_row * S::kBytes;
  parallel_for(threads, (to.rows + kPanel - 1) / kPanel, [&](int64_t panel) {
    Block blocks[kPanel];
    std::memset(blocks, 0, sizeof(blocks));
    const int64_t left = to.rows - panel * kPanel;
    const int64_t lanes = left < kPanel ? left : kPanel;
    for (int64_t block = 0; block < blocks_per_row; ++block) {
      for (int64_t lane = 0; lane < lanes; ++lane)
        S::read(data + (panel * kPanel + lane) * row_bytes + block * S::kBytes, blocks[lane]);
      write_blocks<S>(blocks, panel, to.columns, block * S::kElements, to);
    }
  });
  return 0;
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

// Fills the tensors that `to` points at. Returns 0, or 1 for a format without blocks.
ANTIPHON_EXPORT int antiphon_pack(const uint8_t* data, const Weight* to, int threads) {
  switch (to->format) {
    case kQ4_0: return pack_all<kQ4_0>(data, *to, threads);
    case kQ4_1: return pack_all<kQ4_1>(data, *to, threads);
    case kQ5_0: return pack_all<kQ5_0>(data, *to, threads);
    case kQ5_1: return pack_all<kQ5_1>(data, *to, threads);
    case kQ8_0: return pack_all<kQ8_0>(data, *to, threads);
    case kQ4_K: return pack_all<kQ4_K>(data, *to, threads);
    case kQ5_K: return pack_all<kQ5_K>(data, *to, threads);
    case kQ6_K: return pack_all<kQ6_K>(data, *to, threads);
    default: return 1;
  }
}
