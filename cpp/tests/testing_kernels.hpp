// The testing table of the active target, which is not part of the product.
#pragma once

#include <string>

#include "../dispatch/targets.hpp"
#include "../kernels/testing/table.hpp"

namespace regard {

#define REGARD_TARGET(name, architecture, features) \
  namespace name { extern const PerScalar<TestingKernels> testing; }
#include "compiled_targets.inc"
#undef REGARD_TARGET

template <class T>
const TestingKernels& testing_kernels() {
  const PerScalar<TestingKernels>* found = nullptr;
#define REGARD_TARGET(target_name, architecture, features) \
  if (active_target().name == std::string(#target_name)) found = &target_name::testing;
#include "compiled_targets.inc"
#undef REGARD_TARGET
  if constexpr (sizeof(T) == 4)
    return found->float32;
  else
    return found->float64;
}

template <class Table>
const Table& own_or(const Table& own, const Bfloat16Kernels&) {
  return own;
}
inline const Bfloat16Kernels& own_or(const Bfloat16Kernels&, const Bfloat16Kernels& other) { return other; }

// A target with other float32 kernels of the family bfloat16.
inline Target with_bfloat16(const Target& from, const Bfloat16Kernels& other) {
  return {.name = from.name,
          .vector_bytes = from.vector_bytes,
          .float32 =
              {
#define REGARD_FAMILY(name, Table) .name = own_or(from.float32.name, other),
#include "../kernels/families.inc"
#undef REGARD_FAMILY
              },
          .float64 = from.float64};
}

}  // namespace regard
