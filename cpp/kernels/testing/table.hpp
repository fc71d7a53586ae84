// Functions of simd/ on arrays, for tests of their accuracy. Not part of the package.
#pragma once

#include "../kernel_table.hpp"

namespace regard {

// Each function processes `vectors` whole vectors of the scalar type.
struct TestingKernels {
  // The bfloat16 family in arithmetic that every CPU has. Null in float64.
  Bfloat16Kernels bfloat16;
  // sums = dot_pairs(sums, a, b) (simd/bfloat16_pairs.hpp), in plain arithmetic and with the
  // instruction; the latter is null if the target has no such instruction.
  void (*plain_dot_of_pairs)(const void* a, const void* b, void* sums, std::int64_t vectors);
  void (*dot_of_pairs)(const void* a, const void* b, void* sums, std::int64_t vectors);
  void (*exp)(const void* from, void* to, std::int64_t vectors);                 // to = e^from
  void (*tanh_of_log2_units)(const void* from, void* to, std::int64_t vectors);  // simd/exp.hpp
};

}  // namespace regard
