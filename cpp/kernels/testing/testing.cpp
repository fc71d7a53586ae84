#include REGARD_TARGET_HEADER

#include "../../simd/tanh.hpp"
#include "table.hpp"

namespace regard {
namespace {

template <class T, class Function>
REGARD_INLINE void map_vectors(const void* from, void* to, std::int64_t vectors,
                               Function function) {
  for (std::int64_t i = 0; i < vectors * kLanes<T>; i += kLanes<T>)
    store(static_cast<T*>(to) + i, function(load(static_cast<const T*>(from) + i)));
}

template <class T>
void exp2_of(const void* from, void* to, std::int64_t vectors) {
  map_vectors<T>(from, to, vectors, [](Vec<T> x) { return exp2(x); });
}

template <class T>
void tanh_of(const void* from, void* to, std::int64_t vectors) {
  map_vectors<T>(from, to, vectors, [](Vec<T> x) { return tanh_of_log2_units<T>(x); });
}

template <class T>
constexpr TestingKernels testing_of() {
  return {.exp2 = exp2_of<T>, .tanh_of_log2_units = tanh_of<T>};
}

}  // namespace

namespace REGARD_TARGET_NAME {
extern const PerScalar<TestingKernels> testing;
constexpr PerScalar<TestingKernels> testing = {testing_of<float>(), testing_of<double>()};
}  // namespace REGARD_TARGET_NAME

}  // namespace regard
