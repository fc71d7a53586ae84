#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "forward.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr AttentionKernels attention_of() {
  using Forward = AttentionForward<Shape>;
  return {
      .forward = Forward::kernel(),
      .write_weights = Forward::write_weights,
      .task_rows = Forward::task_rows,
      .row_unit = row_unit<Shape>,
      .block_keys = Shape::kBlockKeys,
      .chunk_keys = Shape::kChunkKeys,
  };
}

}  // namespace

constexpr PerScalar<AttentionKernels> REGARD_TARGET_NAME::attention = {attention_of<Float32>(),
                                                                       attention_of<Float64>()};

}  // namespace regard
