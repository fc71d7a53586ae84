#include REGARD_TARGET_HEADER

#include "../../simd/exp.hpp"
#include "../bfloat16/kernels.hpp"
#include "table.hpp"

namespace regard {
namespace {

template <class T, class Function>
REGARD_INLINE void map_vectors(const void* from, void* to, std::int64_t vectors,
                               Function function) {
  for (std::int64_t i = 0; i < vectors * kLanes<T>; i += kLanes<T>)
    store(static_cast<T*>(to) + i, function(load(static_cast<const T*>(from) + i)));
}

template <class Dot>
void add_dots(const void* a, const void* b, void* sums, std::int64_t vectors) {
  for (std::int64_t i = 0; i < vectors * kLanes<float>; i += kLanes<float>) {
    float* const sum = static_cast<float*>(sums) + i;
    store(sum, Dot::add(load<float>(sum), load(static_cast<const float*>(a) + i),
                        load(static_cast<const float*>(b) + i)));
  }
}

#if !defined(REGARD_X86_V4)
constexpr auto kInstructionDots = nullptr;
#else
constexpr auto kInstructionDots = add_dots<DotOfPairs>;
#endif

template <class T>
constexpr TestingKernels testing_of(Bfloat16Kernels bfloat16) {
  return {.bfloat16 = bfloat16,
          .plain_dot_of_pairs = add_dots<PlainDotOfPairs>,
          .dot_of_pairs = kInstructionDots,
          .exp =
              [](const void* from, void* to, std::int64_t vectors) {
                map_vectors<T>(from, to, vectors, [](Vec<T> x) { return exp(x); });
              },
          .tanh_of_log2_units =
              [](const void* from, void* to, std::int64_t vectors) {
                map_vectors<T>(from, to, vectors,
                               [](Vec<T> x) { return tanh_of_log2_units<T>(x); });
              }};
}

}  // namespace

namespace REGARD_TARGET_NAME {
extern const PerScalar<TestingKernels> testing;
constexpr PerScalar<TestingKernels> testing = {
    testing_of<float>(bfloat16_kernels<PlainDotOfPairs>("")), testing_of<double>({})};
}  // namespace REGARD_TARGET_NAME

}  // namespace regard
