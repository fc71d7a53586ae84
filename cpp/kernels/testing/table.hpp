// Functions of simd/ on arrays, for tests of their accuracy. Not part of the product.
#pragma once

#include "../kernel_table.hpp"

namespace regard {

// Each for `vectors` whole vectors of the scalar type.
struct TestingKernels {
  // The family in arithmetic that every CPU has: null in float64.
  Bfloat16Kernels bfloat16;
  // sums = dot_pairs(sums, a, b) (simd/bfloat16_pairs.hpp), in that arithmetic and by the
  // instruction, or null where the target has none.
  void (*plain_dot_of_pairs)(const void* a, const void* b, void* sums, std::int64_t vectors);
  void (*dot_of_pairs)(const void* a, const void* b, void* sums, std::int64_t vectors);
  void (*exp2)(const void* from, void* to, std::int64_t vectors);                // to = 2^from
  void (*tanh_of_log2_units)(const void* from, void* to, std::int64_t vectors);  // simd/tanh.hpp
};

}  // namespace regard
