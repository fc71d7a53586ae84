// The element-wise stages of attention in SIMD, a few rows at a time: scale, mask, softmax.
//
// The fused kernel computes the same with queries in lanes. These functions expose the stages one
// by one.
#pragma once

#include "elementwise.hpp"
#include "softmax.hpp"

namespace regard {
namespace {

template <class T, class M>
REGARD_INLINE void mask_rows(const StageProblem& problem, const StageRows& rows) {
  for (std::int64_t row = 0; row < rows.count; ++row)
    mask_row<T, M>(problem, static_cast<const T*>(rows.input) + row * rows.input_stride,
                   static_cast<const M*>(rows.mask) + row * rows.mask_stride,
                   static_cast<T*>(rows.output) + row * rows.output_stride, rows.column_begin,
                   rows.column_end);
}

template <class T>
REGARD_NOINLINE void stage_rows(const StageProblem& problem, const StageRows& rows) {
  switch (problem.stage) {
    case Stage::scale:
      for (std::int64_t row = 0; row < rows.count; ++row)
        scale_row<T>(problem, static_cast<const T*>(rows.input) + row * rows.input_stride,
                     static_cast<T*>(rows.output) + row * rows.output_stride, rows.column_begin,
                     rows.column_end);
      return;
    case Stage::softmax:
      return softmax_rows<T>(problem, rows);
    case Stage::apply_mask:
      if (problem.mask.element == Element::boolean)
        return mask_rows<T, unsigned char>(problem, rows);
      if (problem.mask.element == Element::float64) return mask_rows<T, double>(problem, rows);
      return with_input_element<T>(problem.mask.element, [&](auto element) {
        mask_rows<T, typename decltype(element)::Type>(problem, rows);
      });
  }
}

}  // namespace
}  // namespace regard
