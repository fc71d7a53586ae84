// The testing table of the active target, which the product does not have.
#pragma once

#include <string>

#include "../dispatch/on_architecture.hpp"
#include "../dispatch/targets.hpp"
#include "../kernels/testing/table.hpp"

namespace regard {

#define REGARD_TARGET(name, architecture, features) \
  REGARD_ON_##architecture(namespace name { extern const PerScalar<TestingKernels> testing; })
#include "../dispatch/targets.inc"
#undef REGARD_TARGET

template <class T>
const TestingKernels& testing_kernels() {
  const PerScalar<TestingKernels>* found = nullptr;
#define REGARD_TARGET(target_name, architecture, features)                        \
  REGARD_ON_##architecture(if (active_target().name == std::string(#target_name)) \
                               found = &target_name::testing;)
#include "../dispatch/targets.inc"
#undef REGARD_TARGET
  if constexpr (sizeof(T) == 4)
    return found->float32;
  else
    return found->float64;
}

}  // namespace regard
