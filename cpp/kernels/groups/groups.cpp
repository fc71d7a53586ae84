#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "../attention/forward.hpp"
#include "scores.hpp"
#include "values.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr GroupKernels groups_of() {
  using Forward = AttentionForward<Shape, GroupScores<Shape>, GroupValues<Shape>>;
  return {.attention = Forward::kernel(), .write_weights = Forward::write_weights};
}

}  // namespace

constexpr PerScalar<GroupKernels> REGARD_TARGET_NAME::groups = {groups_of<Float32>(),
                                                                groups_of<Float64>()};

}  // namespace regard
