// Recorded programs: the kernel calls of a step that recurs, run from one call of the library.
//
// The binding records each call as the number of its kernel and its arguments. Every pointer
// leads to memory that stays where it is; what differs between two steps lies in that memory.
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "simd.h"

namespace antiphon {
struct Weight;
struct Attention;
struct Lora;
}  // namespace antiphon

using antiphon::Attention;
using antiphon::Lora;
using antiphon::Weight;

ANTIPHON_EXPORT int antiphon_quant_linear(const Weight*, const float*, int64_t, int64_t,
                                          const float*, float*, int64_t, int);
ANTIPHON_EXPORT int antiphon_quant_linear_int16(const Weight*, const float*, int64_t, int64_t,
                                               const float*, float*, int64_t, int);
ANTIPHON_EXPORT void antiphon_rms_norm(const float*, int64_t, int64_t, const float*, float, float,
                                       float*, int64_t, int64_t, int64_t, int64_t, int64_t, int);
ANTIPHON_EXPORT void antiphon_add_rms_norm(const float*, int64_t, const float*, int64_t,
                                           const float*, float, float, float*, float*, int64_t,
                                           int64_t, int);
ANTIPHON_EXPORT int antiphon_rope(float*, int64_t, int64_t, int64_t, float*, int64_t, int64_t,
                                  int64_t, const int32_t*, const float*, const float*, int64_t,
                                  int64_t, int64_t, int);
ANTIPHON_EXPORT void antiphon_gated_activation(const float*, int64_t, const float*, int64_t,
                                               float*, int64_t, int64_t, int64_t, int, int);
ANTIPHON_EXPORT int antiphon_store_kv(const float*, int64_t, int64_t, const float*, int64_t,
                                      int64_t, float*, float*, const int64_t*, int64_t, int64_t,
                                      int64_t, int64_t, int64_t);
ANTIPHON_EXPORT int antiphon_paged_attention(const Attention*, const int32_t*, const int32_t*,
                                             int64_t, int64_t, int);
ANTIPHON_EXPORT int antiphon_lora(const Lora*, const float*, int64_t, const int32_t*, int64_t,
                                  float*, int64_t, int);

namespace antiphon {
namespace {

union Argument {
  void* pointer;
  int64_t integer;
  float real;
};

constexpr int kArguments = 16;

struct Call {
  int64_t kernel;
  Argument arguments[kArguments];
};

template <typename T>
T value_of(const Argument& argument) {
  if constexpr (std::is_pointer_v<T>)
    return static_cast<T>(argument.pointer);
  else if constexpr (std::is_floating_point_v<T>)
    return argument.real;
  else
    return static_cast<T>(argument.integer);
}

template <typename Result, typename... Types, size_t... Places>
int invoke(Result (*kernel)(Types...), const Argument* from, std::index_sequence<Places...>) {
  static_assert(sizeof...(Types) <= kArguments);
  if constexpr (std::is_void_v<Result>) {
    kernel(value_of<Types>(from[Places])...);
    return 0;
  } else {
    return kernel(value_of<Types>(from[Places])...);
  }
}

template <typename Result, typename... Types>
int invoke(Result (*kernel)(Types...), const Call& call) {
  return invoke(kernel, call.arguments, std::index_sequence_for<Types...>());
}

// Numbered as RECORDABLE of program.py.
int run(const Call& call) {
  switch (call.kernel) {
    case 0: return invoke(antiphon_quant_linear, call);
    case 1: return invoke(antiphon_rms_norm, call);
    case 2: return invoke(antiphon_add_rms_norm, call);
    case 3: return invoke(antiphon_rope, call);
    case 4: return invoke(antiphon_gated_activation, call);
    case 5: return invoke(antiphon_store_kv, call);
    case 6: return invoke(antiphon_paged_attention, call);
    case 7: return invoke(antiphon_quant_linear_int16, call);
    case 8: return invoke(antiphon_lora, call);
    default: return -1;
  }
}

}  // namespace
}  // namespace antiphon

// Returns how many calls ran without a fault; fewer than count when one had one.
ANTIPHON_EXPORT int64_t antiphon_run_program(const antiphon::Call* calls, int64_t count) {
  for (int64_t index = 0; index < count; ++index)
    if (antiphon::run(calls[index]) != 0) return index;
  return count;
}
