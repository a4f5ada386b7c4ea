// Row-wise operations: RMS normalisation, rotary embedding, gated activations, cache store.
#include <cmath>

#include "pool.h"
#include "simd.h"

namespace antiphon {
namespace {

// Rows below this many elements in total are not worth a second thread.
constexpr int64_t kParallelElements = 32 * 1024;

inline int team_for(int64_t elements, int threads) {
  return elements < kParallelElements ? 1 : threads;
}

inline float square_sum(const float* x, int64_t dim) {
  Floats sums[2] = {};
  int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes)
    for (int v = 0; v < 2; ++v) {
      const Floats part = load(x + d + v * kLanes);
      sums[v] = fma(part, part, sums[v]);
    }
  float total = sum_lanes(sums[0] + sums[1]);
  for (; d < dim; ++d) total += x[d] * x[d];
  return total;
}

inline void normalise(const float* x, const float* weight, float eps, float offset, float* out,
                      int64_t dim) {
  const float inverse = 1.0f / std::sqrt(square_sum(x, dim) / static_cast<float>(dim) + eps);
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes)
    store(out + d, load(x + d) * inverse * (load(weight + d) + offset));
  for (; d < dim; ++d) out[d] = x[d] * inverse * (weight[d] + offset);
}

inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats first = load(x + i), second = load(x + half + i);
    const Floats c = load(cos + i), s = load(sin + i);
    store(x + i, first * c - second * s);
    store(x + half + i, second * c + first * s);
  }
  for (; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] - second * sin[i];
    x[half + i] = second * cos[i] + first * sin[i];
  }
}

// gelu(g) with the tanh approximation equals g * sigmoid(2 u) of its inner polynomial u.
inline Floats gelu_tanh(Floats gate) {
  const Floats inner = gate * fma(gate * gate, broadcast(0.0713548162726f), broadcast(1.59576912161f));
  return gate * sigmoid(inner);
}

template <bool Gelu>
inline void gate_row(const float* gate, const float* up, float* out, int64_t dim) {
  int64_t d = 0;
  for (; d < dim; d += kLanes) {
    const int64_t left = dim - d;
    Floats g, u;
    if (left >= kLanes) {
      g = load(gate + d);
      u = load(up + d);
    } else {
      g = u = Floats{};
      std::memcpy(&g, gate + d, static_cast<size_t>(left) * 4);
      std::memcpy(&u, up + d, static_cast<size_t>(left) * 4);
    }
    const Floats result = (Gelu ? gelu_tanh(g) : g * sigmoid(g)) * u;
    std::memcpy(out + d, &result, static_cast<size_t>(left >= kLanes ? kLanes : left) * 4);
  }
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

// x and out are rows x heads vectors of dim elements with their own strides.
ANTIPHON_EXPORT void antiphon_rms_norm(const float* x, int64_t x_row, int64_t x_head,
                                  const float* weight, float eps, float offset, float* out,
                                  int64_t out_row, int64_t out_head, int64_t rows, int64_t heads,
                                  int64_t dim, int threads) {
  const int team = team_for(rows * heads * dim, threads);
  parallel_for(team, rows, [=](int64_t row) {
    for (int64_t head = 0; head < heads; ++head)
      normalise(x + row * x_row + head * x_head, weight, eps, offset,
                out + row * out_row + head * out_head, dim);
  });
}

ANTIPHON_EXPORT void antiphon_add_rms_norm(const float* x, int64_t x_row, const float* residual,
                                      int64_t residual_row, const float* weight, float eps,
                                      float offset, float* normed, float* total, int64_t rows,
                                      int64_t dim, int threads) {
  const int team = team_for(rows * dim, threads);
  parallel_for(team, rows, [=](int64_t row) {
    const float* a = x + row * x_row;
    const float* b = residual + row * residual_row;
    float* sum = total + row * dim;
    for (int64_t d = 0; d < dim; ++d) sum[d] = a[d] + b[d];
    normalise(sum, weight, eps, offset, normed + row * dim, dim);
  });
}

// Returns 0, or 1 for a position outside the tables, before anything is rotated.
ANTIPHON_EXPORT int antiphon_rope(float* q, int64_t q_row, int64_t q_head, int64_t q_heads, float* k,
                             int64_t k_row, int64_t k_head, int64_t k_heads,
                             const int32_t* positions, const float* cos, const float* sin,
                             int64_t table_rows, int64_t half, int64_t rows, int threads) {
  for (int64_t row = 0; row < rows; ++row)
    if (positions[row] < 0 || positions[row] >= table_rows) return 1;
  const int team = team_for(rows * (q_heads + k_heads) * half * 2, threads);
  parallel_for(team, rows, [=](int64_t row) {
    const float* c = cos + positions[row] * half;
    const float* s = sin + positions[row] * half;
    for (int64_t head = 0; head < q_heads; ++head)
      rotate(q + row * q_row + head * q_head, c, s, half);
    for (int64_t head = 0; head < k_heads; ++head)
      rotate(k + row * k_row + head * k_head, c, s, half);
  });
  return 0;
}

ANTIPHON_EXPORT void antiphon_gated_activation(const float* gate, int64_t gate_row_stride,
                                          const float* up, int64_t up_row_stride, float* out,
                                          int64_t out_row_stride, int64_t rows, int64_t dim,
                                          int gelu, int threads) {
  const int team = team_for(rows * dim, threads);
  parallel_for(team, rows, [=](int64_t row) {
    const float* g = gate + row * gate_row_stride;
    const float* u = up + row * up_row_stride;
    float* to = out + row * out_row_stride;
    if (gelu)
      gate_row<true>(g, u, to, dim);
    else
      gate_row<false>(g, u, to, dim);
  });
}

// Copies heads x dim floats of every row to its slot. Returns 0, or 1 for a slot outside the
// cache, before anything is written.
ANTIPHON_EXPORT int antiphon_store_kv(const float* k, int64_t k_row, int64_t k_head, const float* v,
                                 int64_t v_row, int64_t v_head, float* k_cache, float* v_cache,
                                 const int64_t* slots, int64_t cache_slots, int64_t rows,
                                 int64_t heads, int64_t k_dim, int64_t v_dim) {
  for (int64_t row = 0; row < rows; ++row)
    if (slots[row] < 0 || slots[row] >= cache_slots) return 1;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t to = slots[row] * heads + head;
      std::memcpy(k_cache + to * k_dim, k + row * k_row + head * k_head,
                  static_cast<size_t>(k_dim) * 4);
      std::memcpy(v_cache + to * v_dim, v + row * v_row + head * v_head,
                  static_cast<size_t>(v_dim) * 4);
    }
  return 0;
}
