#include REGARD_TARGET_HEADER

#include "../targets/families.hpp"
#include "roofline.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr RooflineKernels roofline_of() {
  return {.fma_rounds = fma_rounds<Shape>, .read_bytes = read_bytes};
}

}  // namespace

constexpr PerScalar<RooflineKernels> REGARD_TARGET_NAME::roofline = {roofline_of<Float32>(),
                                                                     roofline_of<Float64>()};

}  // namespace regard
