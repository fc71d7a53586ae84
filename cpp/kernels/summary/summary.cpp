#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "summary.hpp"

namespace regard {

constexpr PerScalar<SummaryKernels> REGARD_TARGET_NAME::summary = {Summary<Float32>::kernels(),
                                                                   Summary<Float64>::kernels()};

}  // namespace regard
