// Fills in a target's table from the tile shapes of its two element types.
#pragma once

#include "decode/decode.hpp"
#include "attention/forward.hpp"
#include "roofline/roofline.hpp"
#include "int8/scores.hpp"
#include "kernel_table.hpp"
#include "matmul/matmul.hpp"
#include "rows/merge_states.hpp"
#include "rows/quantise_rows.hpp"
#include "rows/stages.hpp"
#include "rows/convert_rows.hpp"

namespace regard {
namespace {

template <class Shape, class Attention>
constexpr AttentionKernel forward_kernel() {
  return {Attention::workspace_bytes, Attention::begin, Attention::advance, Attention::finish,
          Attention::copies_keys, copies_values<typename Shape::Element, Shape::kRows>, Shape::kRows,
          Attention::count_tiles, Shape::kStripLanes, Shape::kRows};
}

template <class Shape, class Scores>
constexpr Int8Attention int8_attention(const char* instruction) {
  using Attention = AttentionForward<Shape, Scores>;
  return {forward_kernel<Shape, Attention>(), Attention::write_weights, instruction};
}

template <class Shape>
constexpr Int8Attention int8_dot_attention() {
#if defined(__x86_64__) && REGARD_VECTOR_BYTES >= 32
  if constexpr (sizeof(typename Shape::Element) == 4)
    return int8_attention<Shape, DotScores<Shape>>(kDotFeature);
#endif
  return {};
}

template <class Shape>
constexpr Int8Attention int8_float_attention() {
  if constexpr (sizeof(typename Shape::Element) == 4)
    return int8_attention<Shape, FloatScores<Shape>>(nullptr);
  return {};
}

template <class Shape>
constexpr Int8Quantiser int8_quantiser() {
  if constexpr (sizeof(typename Shape::Element) == 4) {
    using Keys = QuantisedKeys<Shape>;
    return {Keys::bytes, Keys::begin, Keys::add_to_mean, Keys::quantise};
  }
  return {};
}

template <class Shape>
constexpr Kernels kernels_of() {
  using Attention = AttentionForward<Shape>;
  using Decode = AttentionDecode<Shape>;
  using Product = Matmul<Shape>;
  return {
      forward_kernel<Shape, Attention>(),
      {Decode::workspace_bytes, Decode::begin, Decode::advance, Decode::finish, Decode::copies_keys,
       Decode::copies_values, kLanes<typename Shape::Element>, Decode::count_steps,
       kDecodeRows, kDecodeStep<Shape>},
      Decode::merge,
      kDecodeRows,
      Shape::kChunkKeys,
      Attention::task_rows,
      row_unit<Shape>,
      Attention::write_weights,
      Shape::kBlockKeys,
      Shape::kStripLanes,
      int8_dot_attention<Shape>(),
      int8_float_attention<Shape>(),
      int8_quantiser<Shape>(),
      Product::workspace_bytes,
      Product::run,
      Product::kTaskRows,
      Product::kTaskColumns,
      Product::kDepth,
      stage_row<typename Shape::Element>,
      merge_rows<typename Shape::Element>,
      quantise_rows,
      convert_row,
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
