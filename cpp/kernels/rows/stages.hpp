// The stages of attention, one by one, on rows: scale and apply_mask, which process each score
// separately at the speed of memory, and softmax. The fused kernel computes the same with queries
// in lanes.
#pragma once

#include "../mask_value.hpp"
#include "../../problem/rows.hpp"
#include "../elements.hpp"
#include "elements.hpp"
#include "softmax.hpp"

namespace regard {
namespace {

// Returns what a mask adds to scores: -inf, which hides, for false; 0 for true; and a float mask's
// number itself.
template <class T, class M>
REGARD_NOINLINE Vec<T> added_by_mask(const M* mask, std::int64_t stride, std::int64_t count) {
  T lanes[kLanes<T>];
  for (int i = 0; i < kLanes<T>; ++i) {
    if (i >= count) {
      lanes[i] = T(0);
    } else if constexpr (sizeof(M) == 1) {
      lanes[i] = mask[i * stride] ? T(0) : -kInfinity<T>;
    } else {
      lanes[i] = mask_value<T>(widen(mask[i * stride]));
    }
  }
  return load(lanes);
}

// Converts to lanes of twice the size. GCC compiles each such step to one instruction, but converts
// element by element if a step is longer.
template <class T, class Number, class Narrow>
REGARD_INLINE auto widen_lanes(Narrow narrow) {
  static_assert(sizeof(Number) == 2 * sizeof(narrow[0]));
  typedef Number Wide __attribute__((vector_size(kLanes<T> * sizeof(Number))));
  return __builtin_convertvector(narrow, Wide);
}

template <class T, class M>
REGARD_INLINE Vec<T> added_by_dense_mask(const M* mask) {
  if constexpr (sizeof(M) == 1) {
    typedef std::uint8_t Bytes __attribute__((vector_size(kLanes<T>), aligned(1), may_alias));
    const auto words = widen_lanes<T, std::int32_t>(
        widen_lanes<T, std::uint16_t>(*reinterpret_cast<const Bytes*>(mask)));
    Mask<T> shown;
    if constexpr (sizeof(T) == 4)
      shown = words;
    else
      shown = widen_lanes<T, std::int64_t>(words);
    return select<T>(shown != Mask<T>{}, Vec<T>{}, broadcast(-kInfinity<T>));
  } else if constexpr (sizeof(M) <= sizeof(T)) {
    return load_as<T>(mask);
  } else {
    return added_by_mask<T, M>(mask, 1, kLanes<T>);
  }
}

// A hidden score becomes -inf, whatever it was.
template <class T, class M>
REGARD_INLINE Vec<T> masked(Vec<T> score, Vec<T> added) {
  const Vec<T> hidden = broadcast(-kInfinity<T>);
  return select<T>(added == hidden, hidden, sizeof(M) == 1 ? score : score + added);
}

template <class T, class M>
REGARD_NOINLINE void mask_row(const StageProblem& problem, const T* input, const M* mask, T* output,
                              std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = problem.mask.column_stride;
  const auto map = [&](auto added_at) {
    map_aligned<T>(
        input, problem.input.column_stride, begin, end, output, problem.output.column_stride,
        [&](Vec<T> score, std::int64_t at) { return masked<T, M>(score, added_at(at)); });
  };
  if (stride == 0) {
    const Vec<T> added = broadcast(added_by_mask<T, M>(mask, 0, 1)[0]);
    return map([=](std::int64_t) { return added; });
  }
  map([=](std::int64_t at) {
    if (stride == 1 && at + kLanes<T> <= end) return added_by_dense_mask<T, M>(mask + at);
    return added_by_mask<T, M>(mask + at * stride, stride, end - at);
  });
}

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
  const Vec<T> factor = broadcast(static_cast<T>(problem.factor));
  switch (problem.stage) {
    case Stage::scale:
      for (std::int64_t row = 0; row < rows.count; ++row)
        map_aligned<T>(static_cast<const T*>(rows.input) + row * rows.input_stride,
                       problem.input.column_stride, rows.column_begin, rows.column_end,
                       static_cast<T*>(rows.output) + row * rows.output_stride,
                       problem.output.column_stride,
                       [=](Vec<T> value, std::int64_t) { return value * factor; });
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
