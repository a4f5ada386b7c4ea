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

typedef float Quad __attribute__((vector_size(16), aligned(4)));

// 32 keys of dim floats to dim rows of 32.
inline void transpose_keys(const float* const* keys, int64_t dim, float* to) {
  for (int64_t j = 0; j < kBlock; j += 4)
    for (int64_t d = 0; d < dim; d += 4) {
      Quad rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const Quad*>(keys[j + i] + d);
      const Quad low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
      const Quad high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
      const Quad low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
      const Quad high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
      float* column = to + d * kBlock + j;
      *reinterpret_cast<Quad*>(column) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
      *reinterpret_cast<Quad*>(column + kBlock) =
          __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
      *reinterpret_cast<Quad*>(column + 2 * kBlock) =
          __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
      *reinterpret_cast<Quad*>(column + 3 * kBlock) =
          __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    }
}

// Turns a row of 32 scores into weights relative to the new maximum; returns the factor that
// the row's earlier sums decay by. Keys that the query may not see get weight zero.
inline float softmax_row(const Attention& call, int64_t position, int64_t base, float* scores,
                         float& maximum, float& denominator) {
  const int64_t low = lowest_key(call, position) - base;
  const int64_t high = position + 1 - base;
  if (low >= kBlock || high <= 0) {
    std::memset(scores, 0, kBlock * sizeof(float));
    return 1.0f;
  }
  Floats parts[kPanelVectors];
  if (call.softcap > 0.0f)
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats ratio = load(scores + v * kLanes) / call.softcap;
      store(scores + v * kLanes, tanh(ratio) * call.softcap);
    }
  for (int64_t j = 0; j < low; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = high; j < kBlock; ++j) scores[j] = -__builtin_inff();
  for (int v = 0; v < kPanelVectors; ++v) parts[v] = load(scores + v * kLanes);
  Floats highest = parts[0];
  for (int v = 1; v < kPanelVectors; ++v) highest = max(highest, parts[v]);
  const float block_maximum = max_lanes(highest);
  const float joint = block_maximum > maximum ? block_maximum : maximum;
  Floats sum = {};
  for (int v = 0; v < kPanelVectors; ++v) {
    const Floats weight = exp(parts[v] - joint);
    store(scores + v * kLanes, weight);
    sum += weight;
  }
  const float decay = exp_one(maximum - joint);
  denominator = denominator * decay + sum_lanes(sum);
  maximum = joint;
  return decay;
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
