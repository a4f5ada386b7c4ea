// The arithmetic of one block of 32 keys: scores, online softmax and the weighted values.
#pragma once

#include "panel.h"

namespace antiphon {

constexpr int64_t kBlock = kPanel;
constexpr int64_t kSplit = 8 * kBlock;
constexpr int64_t kMaxHeadDim = 512;

// The arguments of a call; library.py mirrors the layout. dim is a multiple of 16.
struct Attention {
  const float* q;
  const float* k_cache;
  const float* v_cache;
  float* out;
  const int32_t* block_table;
  int64_t q_row, q_head;
  int64_t table_width, block_tokens;
  int64_t heads, kv_heads, group, dim;
  int64_t window;
  float scale, softcap;
};

// Consecutive queries of one row of the batch.
struct Tile {
  int64_t row;
  int64_t first_query;  // index into q
  int64_t queries;
  int64_t position;  // of the first query
};

// Running softmax of score rows: maximum, denominator and weighted sum of values (rows x dim).
struct State {
  float* maximum;
  float* denominator;
  float* values;

  static State at(float* memory, int64_t rows) {
    return {memory, memory + rows, memory + 2 * rows};
  }
};

// Where a block's keys and values lie. Entries outside [first, last) are not visible to any
// query of the tile: their key is a row of zeros and their value is never read.
struct KeyBlock {
  const float* keys[kBlock];
  const float* values[kBlock];
  int64_t first, last;
};

inline int64_t lowest_key(const Attention& call, int64_t position) {
  if (call.window <= 0 || position < call.window) return 0;
  return position - call.window + 1;
}

inline void clear(const State& state, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r) {
    state.maximum[r] = -__builtin_inff();
    state.denominator[r] = 0.0f;
  }
  std::memset(state.values, 0, static_cast<size_t>(rows * dim) * 4);
}

// The vector exponential of one number, so that both round alike.
inline float exp_one(float x) { return exp(broadcast(x))[0]; }

// Adds a split's state to the total of one row; a split without visible keys adds nothing.
inline void merge(float& maximum, float& denominator, float* values, float part_maximum,
                  float part_denominator, const float* part_values, int64_t dim) {
  if (part_denominator == 0.0f) return;
  const float joint = part_maximum > maximum ? part_maximum : maximum;
  const float keep = exp_one(maximum - joint), add = exp_one(part_maximum - joint);
  denominator = denominator * keep + part_denominator * add;
  for (int64_t d = 0; d < dim; d += kLanes)
    store(values + d,
          fma(load(part_values + d), broadcast(add), load(values + d) * broadcast(keep)));
  maximum = joint;
}

inline void locate(const Attention& call, const Tile& tile, int64_t kv_head, int64_t base,
                   int64_t lowest, int64_t limit, KeyBlock& block) {
  alignas(64) static const float zeros[kMaxHeadDim] = {};
  const int32_t* table = call.block_table + tile.row * call.table_width;
  block.first = lowest > base ? lowest - base : 0;
  block.last = limit - base < kBlock ? limit - base : kBlock;
  for (int64_t j = 0; j < kBlock; ++j) {
    if (j < block.first || j >= block.last) {
      block.keys[j] = block.values[j] = zeros;
      continue;
    }
    const int64_t key = base + j;
    const int64_t slot =
        table[key / call.block_tokens] * call.block_tokens + key % call.block_tokens;
    const int64_t offset = (slot * call.kv_heads + kv_head) * call.dim;
    block.keys[j] = call.k_cache + offset;
    block.values[j] = call.v_cache + offset;
  }
}

#if defined(__AVX512F__)
// A square of 16 rows, which lie where `rows` says, to columns that lie `stride` apart.
inline void transpose_square(const float* const* rows, int64_t offset, float* to, int64_t stride) {
  __m512 pairs[4][4];  // by group of four rows: columns 4 i + k of lane i
  for (int g = 0; g < 4; ++g) {
    __m512 row[4];
    for (int i = 0; i < 4; ++i) row[i] = _mm512_loadu_ps(rows[4 * g + i] + offset);
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(row[0], row[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(row[0], row[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(row[2], row[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(row[2], row[3]));
    pairs[g][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    pairs[g][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    pairs[g][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    pairs[g][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
  }
  for (int k = 0; k < 4; ++k) {
    const __m512 even01 = _mm512_shuffle_f32x4(pairs[0][k], pairs[1][k], 0x88);
    const __m512 even23 = _mm512_shuffle_f32x4(pairs[2][k], pairs[3][k], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(pairs[0][k], pairs[1][k], 0xdd);
    const __m512 odd23 = _mm512_shuffle_f32x4(pairs[2][k], pairs[3][k], 0xdd);
    float* column = to + k * stride;
    _mm512_storeu_ps(column, _mm512_shuffle_f32x4(even01, even23, 0x88));
    _mm512_storeu_ps(column + 4 * stride, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
    _mm512_storeu_ps(column + 8 * stride, _mm512_shuffle_f32x4(even01, even23, 0xdd));
    _mm512_storeu_ps(column + 12 * stride, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
  }
}
constexpr int64_t kSquare = 16;
#else
typedef float Quad __attribute__((vector_size(16), aligned(4)));

// The same for a square of four.
inline void transpose_square(const float* const* from, int64_t offset, float* to, int64_t stride) {
  Quad rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const Quad*>(from[i] + offset);
  const Quad low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Quad high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Quad low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Quad high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  *reinterpret_cast<Quad*>(to) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  *reinterpret_cast<Quad*>(to + stride) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  *reinterpret_cast<Quad*>(to + 2 * stride) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  *reinterpret_cast<Quad*>(to + 3 * stride) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}
constexpr int64_t kSquare = 4;
#endif

// 32 keys of dim floats to dim rows of 32.
inline void transpose_keys(const float* const* keys, int64_t dim, float* to) {
  for (int64_t d = 0; d < dim; d += kSquare)
    for (int64_t j = 0; j < kBlock; j += kSquare)
      transpose_square(keys + j, d, to + d * kBlock + j, kBlock);
}

// Whether a query at a position sees any key of the block that begins at base.
inline bool sees_block(const Attention& call, int64_t position, int64_t base) {
  return lowest_key(call, position) < base + kBlock && position >= base;
}

// Finishes a row of 32 scores, with minus infinity for the keys that the query may not see, and
// raises its maximum. Returns how far the maximum rose, as a number not above zero.
inline float raise_maximum(const Attention& call, int64_t position, int64_t base, float* scores,
                           float& maximum) {
  if (!sees_block(call, position, base)) return 0.0f;
  if (call.softcap > 0.0f)
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats ratio = load(scores + v * kLanes) / call.softcap;
      store(scores + v * kLanes, tanh(ratio) * call.softcap);
    }
  const int64_t low = lowest_key(call, position) - base;
  for (int64_t j = 0; j < low; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = position + 1 - base; j < kBlock; ++j) scores[j] = -__builtin_inff();
  Floats highest = load(scores);
  for (int v = 1; v < kPanelVectors; ++v) highest = max(highest, load(scores + v * kLanes));
  const float before = maximum, found = max_lanes(highest);
  if (found > maximum) maximum = found;
  return before - maximum;
}

// Turns the rows' scores into weights relative to their new maximums, and the rises in decay
// into the factors that the rows' earlier sums decay by. decay has room for whole vectors.
inline void softmax_block(const Attention& call, const Tile& tile, int64_t base, float* scores,
                          float* decay, const State& state) {
  const int64_t rows = tile.queries * call.group;
  for (int64_t query = 0, r = 0; query < tile.queries; ++query)
    for (int64_t g = 0; g < call.group; ++g, ++r)
      decay[r] = raise_maximum(call, tile.position + query, base, scores + r * kBlock,
                               state.maximum[r]);
  for (int64_t r = 0; r < rows; r += kLanes) store(decay + r, exp(load(decay + r)));
  for (int64_t query = 0, r = 0; query < tile.queries; ++query)
    for (int64_t g = 0; g < call.group; ++g, ++r) {
      float* row = scores + r * kBlock;
      if (!sees_block(call, tile.position + query, base)) {
        std::memset(row, 0, kBlock * sizeof(float));
        continue;
      }
      const Floats maximum = broadcast(state.maximum[r]);
      Floats sum = {};
      for (int v = 0; v < kPanelVectors; ++v) {
        const Floats weight = exp(load(row + v * kLanes) - maximum);
        store(row + v * kLanes, weight);
        sum += weight;
      }
      state.denominator[r] = state.denominator[r] * decay[r] + sum_lanes(sum);
    }
}

// values[r] = values[r] * decay[r] + sum over j of weights[r][j] * block.values[j], Vectors
// vectors wide from element d on.
template <int Rows, int Vectors>
inline void value_tile(const float* weights, const KeyBlock& block, const float* decay,
                       float* values, int64_t dim, int64_t d) {
  Floats sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      sums[r][v] = load(values + r * dim + d + v * kLanes) * decay[r];
  for (int64_t j = block.first; j < block.last; ++j) {
    Floats value[Vectors];
    for (int v = 0; v < Vectors; ++v) value[v] = load(block.values[j] + d + v * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const Floats weight = broadcast(weights[r * kBlock + j]);
      for (int v = 0; v < Vectors; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) store(values + r * dim + d + v * kLanes, sums[r][v]);
}

template <int Rows>
inline void values_of_height(int64_t rows, const float* weights, const KeyBlock& block,
                             const float* decay, float* values, int64_t dim) {
  if constexpr (Rows > 0) {
    if (rows != Rows) {
      values_of_height<Rows - 1>(rows, weights, block, decay, values, dim);
      return;
    }
    int64_t d = 0;
    for (; d + 2 * kLanes <= dim; d += 2 * kLanes)
      value_tile<Rows, 2>(weights, block, decay, values, dim, d);
    for (; d < dim; d += kLanes) value_tile<Rows, 1>(weights, block, decay, values, dim, d);
  }
}

inline void add_values(int64_t rows, const float* weights, const KeyBlock& block,
                       const float* decay, float* values, int64_t dim) {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    const int64_t height = rows - row < kTileRows ? rows - row : kTileRows;
    values_of_height<kTileRows>(height, weights + row * kBlock, block, decay + row,
                                values + row * dim, dim);
  }
}

}  // namespace antiphon
