#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "backward.hpp"

namespace regard {

constexpr PerScalar<BackwardKernels> REGARD_TARGET_NAME::backward = {Backward<Float32>::kernels(),
                                                                     Backward<Float64>::kernels()};

}  // namespace regard
