// Functions of simd/ on arrays, for tests of their accuracy. Not part of the product.
#pragma once

#include "../kernel_table.hpp"

namespace regard {

// Each for `vectors` whole vectors of the scalar type.
struct TestingKernels {
  void (*exp2)(const void* from, void* to, std::int64_t vectors);                // to = 2^from
  void (*tanh_of_log2_units)(const void* from, void* to, std::int64_t vectors);  // simd/tanh.hpp
};

}  // namespace regard
