#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "tangent.hpp"

namespace regard {

constexpr PerScalar<TangentKernels> REGARD_TARGET_NAME::tangent = {Tangent<Float32>::kernels(),
                                                                   Tangent<Float64>::kernels()};

}  // namespace regard
