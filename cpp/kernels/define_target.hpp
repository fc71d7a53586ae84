// Fills in a target's table from the tile shapes of its two element types.
#pragma once

#include "attention_decode.hpp"
#include "attention_forward.hpp"
#include "calibration.hpp"
#include "kernel_table.hpp"
#include "matmul.hpp"
#include "merge.hpp"
#include "stages.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr Kernels kernels_of() {
  using Attention = AttentionForward<Shape>;
  using Decode = AttentionDecode<Shape>;
  using Product = Matmul<Shape>;
  return {
      {Attention::workspace_bytes, Attention::begin, Attention::advance, Attention::finish,
       Attention::copies_keys, copies_values<typename Shape::Element, Shape::kRows>, Shape::kRows,
       Attention::count_tiles, Shape::kStripLanes, Shape::kRows},
      {Decode::workspace_bytes, Decode::begin, Decode::advance, Decode::finish, Decode::copies_keys,
       Decode::copies_values, kLanes<typename Shape::Element>, Decode::count_steps,
       kDecodeRows, kDecodeStep<Shape>},
      Decode::join,
      kDecodeRows,
      Shape::kChunkKeys,
      Attention::task_rows,
      row_unit<Shape>,
      Attention::write_weights,
      Shape::kBlockKeys,
      Shape::kStripLanes,
      Product::workspace_bytes,
      Product::run,
      Product::kTaskRows,
      Product::kTaskColumns,
      Product::kDepth,
      stage_row<typename Shape::Element>,
      merge_rows<typename Shape::Element>,
      exp2_vectors<typename Shape::Element>,
      tanh_vectors<typename Shape::Element>,
      fma_rounds<Shape>,
      read_bytes,
  };
}

}  // namespace
}  // namespace regard

#define REGARD_DEFINE_TARGET(name, Float32Shape, Float64Shape)                         \
  namespace regard {                                                                   \
  extern const Target name##_target;                                                   \
  const Target name##_target = {#name, REGARD_VECTOR_BYTES, kernels_of<Float32Shape>(), \
                                kernels_of<Float64Shape>()};                           \
  }
