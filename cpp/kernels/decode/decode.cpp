#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "decode.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr DecodeKernels decode_of() {
  using Decode = AttentionDecode<Shape>;
  return {
      .kernel =
          {
              .workspace_bytes = Decode::workspace_bytes,
              .begin = Decode::begin,
              .advance = Decode::advance,
              .finish = Decode::finish,
              .copies_keys = Decode::copies_keys,
              .copies_values = Decode::copies_values,
              .columns = kLanes<typename Shape::Element>,
              .begin_count = Decode::begin_count,
              .count = Decode::count_steps,
              .tile_rows = kDecodeRows,
              .tile_keys = kDecodeStep<Shape>,
          },
      .merge = Decode::merge,
      .most_rows = kDecodeRows,
      .reads_four_bits = kDecodesOtherTypes<typename Shape::Element>,
  };
}

}  // namespace

// Few calls decode in float64, and the forward kernel returns the same bits.
constexpr PerScalar<DecodeKernels> REGARD_TARGET_NAME::decode = {.float32 = decode_of<Float32>(),
                                                                 .float64 = {}};

}  // namespace regard
