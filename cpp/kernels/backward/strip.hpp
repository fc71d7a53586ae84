// Sets a strip of queries up: where they stand, and what the products read of them, in lanes and as rows.
#pragma once

#include "../attention/key_block.hpp"
#include "../attention/strip_setup.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

template <class T>
REGARD_INLINE bool are_finite(RowsOfStrip<T>& rows, int row_count, std::int64_t columns) {
  if (rows.are_finite < 0) rows.are_finite = rows_are_finite(rows.from, rows.stride, row_count, columns);
  return rows.are_finite != 0;
}

// to[lane][column] = the strip's rows of an array, padded with zeros.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void copy_strip_rows(const AttentionProblem& problem, const Operand& operand, const void* data,
                                     const StripRows<T>& strip, std::int64_t columns, T* to,
                                     std::int64_t padded_columns) {
  with_input_element<T>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* rows[Shape::kStripLanes];
    row_pointers(problem, operand, data, strip, 0, rows);
    for (int lane = 0; lane < strip.rows; ++lane)
      copy_padded<T>(rows[lane], 0, operand.column_stride, 1, columns, to + lane * padded_columns, 1, padded_columns);
  });
}

// The strip's rows in whole vectors: where they lie, if they are stored like that, or copied.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE RowsOfStrip<T> rows_of_strip(const AttentionProblem& problem, const Operand& operand, const void* data,
                                           const StripRows<T>& strip, std::int64_t columns, T* copy,
                                           std::int64_t padded_columns) {
  if (reads_in_place<T>(operand) && problem.heads == problem.kv_heads && columns == padded_columns)
    return {static_cast<const T*>(data) + strip.first_row * operand.row_stride, operand.row_stride, -1};
  copy_strip_rows<Shape>(problem, operand, data, strip, columns, copy, padded_columns);
  return {copy, padded_columns, -1};
}

// to[column][lane] = factor times the strip's rows.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void rows_of_strip_to_lanes(const RowsOfStrip<T>& from, int row_count, std::int64_t columns,
                                            T factor, T* to, std::int64_t lanes) {
  const T* rows[Shape::kStripLanes];
  for (int lane = 0; lane < row_count; ++lane) rows[lane] = from.from + lane * from.stride;
  rows_to_lanes<T>(rows, row_count, 1, columns, to, lanes,
                   [=](Vec<T> value) { return value * broadcast(factor); });
}

// One number a row, or 0 for each where the array is not there. `use` gets a lane and its number.
template <class Shape, class Use, class T = typename Shape::Element>
REGARD_INLINE void for_numbers_of_rows(const AttentionProblem& problem, const Operand& operand, const void* data,
                                       const StripRows<T>& strip, Use use) {
  with_input_element<double>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* rows[Shape::kStripLanes];
    if (data) row_pointers(problem, operand, data, strip, 0, rows);
    for (int lane = 0; lane < strip.rows; ++lane) use(lane, data ? static_cast<double>(widen(*rows[lane])) : 0.0);
  });
}

template <class T>
REGARD_INLINE bool are_zeros(const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>)
    if (any<T>(load(from + i) != Vec<T>{})) return false;
  return true;
}

template <class T>
REGARD_INLINE T dot(const T* a, const T* b, std::int64_t count) {
  Vec<T> sums{};
  for (std::int64_t i = 0; i < count; i += kLanes<T>) sums = fma(load(a + i), load(b + i), sums);
  T sum = sums[0];
  for (int lane = 1; lane < kLanes<T>; ++lane) sum += sums[lane];
  return sum;
}

// Makes `strip` each strip of the rows, and calls body() for it. Strips follow from the lengths alone, whatever the
// mask: a key's gradients are summed strip by strip.
template <class Shape, class Body, class T = typename Shape::Element>
REGARD_INLINE void for_backward_strips(std::int64_t row_begin, std::int64_t row_end, StripRows<T>& strip, Body body) {
  for (std::int64_t row = row_begin; row < row_end; row += Shape::kStripLanes) {
    const std::int64_t left = row_end - row;
    strip.first_row = row;
    strip.rows = static_cast<int>(left < Shape::kStripLanes ? left : Shape::kStripLanes);
    strip.vectors = (strip.rows + kLanes<T> - 1) / kLanes<T>;
    body();
  }
}

// Fills in where the strip's rows stand. Nothing of the arrays is read.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void locate_strip(const BackwardProblem& problem, const BackwardTask& task,
                                BackwardWorkspace<T>& work) {
  StripRows<T>& strip = work.strip;
  locate_rows(problem.forward, task.forward, strip);
  if (!strip.slopes) return;
  const std::int64_t group = problem.forward.heads / problem.forward.kv_heads;
  for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane)
    strip.slopes[lane] = slope_of<T>(problem.forward, task.forward, (strip.first_row + lane) % group);
}

// Forms D = rowsum(grad_output output) - grad_lse. With `skips_zeros` a row of zeros in output counts as 0, whatever
// grad_output holds.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void find_deltas(const BackwardProblem& problem, const BackwardTask& task, BackwardWorkspace<T>& work,
                                 bool skips_zeros) {
  const AttentionProblem& forward = problem.forward;
  const StripRows<T>& strip = work.strip;
  const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
  work.grad_output_rows = rows_of_strip<Shape>(forward, problem.grad_output, task.grad_output, strip,
                                               forward.value_dim, work.copied_grad_output_rows, value_dim);
  const RowsOfStrip<T> outputs = rows_of_strip<Shape>(forward, forward.output,
                                                      static_cast<const void*>(task.forward.output), strip,
                                                      forward.value_dim, work.copied_output_rows, value_dim);
  for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) work.delta[lane] = T(0);
  for (int lane = 0; lane < strip.rows; ++lane) {
    const T* const output = outputs.from + lane * outputs.stride;
    if (skips_zeros && are_zeros(output, value_dim)) continue;
    work.delta[lane] = dot(work.grad_output_rows.from + lane * work.grad_output_rows.stride, output, value_dim);
  }
  for_numbers_of_rows<Shape>(forward, problem.grad_lse, task.grad_lse, strip, [&](int lane, double gradient) {
    work.delta[lane] -= static_cast<T>(gradient);
  });
}

// Brings the strip's queries and gradients of outputs into lanes, and finds its lse and D.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void pack_strip(const BackwardProblem& problem, const BackwardTask& task,
                                BackwardWorkspace<T>& work) {
  const AttentionProblem& forward = problem.forward;
  const StripRows<T>& strip = work.strip;
  const std::int64_t lanes = strip.vectors * kLanes<T>;
  work.query_rows = rows_of_strip<Shape>(forward, forward.query, task.forward.query, strip, forward.head_dim,
                                         work.copied_query_rows, padded_dim<Shape>(forward.head_dim));
  rows_of_strip_to_lanes<Shape>(work.query_rows, strip.rows, forward.head_dim, query_scale<T>(forward), work.queries,
                                lanes);
  find_deltas<Shape>(problem, task, work, false);
  rows_of_strip_to_lanes<Shape>(work.grad_output_rows, strip.rows, forward.value_dim, T(1), work.grad_outputs, lanes);
  for (std::int64_t lane = 0; lane < lanes; ++lane) work.lse[lane] = T(0);
  for_numbers_of_rows<Shape>(forward, forward.lse, task.forward.lse, strip, [&](int lane, double lse) {
    work.lse[lane] = static_cast<T>(lse * kLog2E);
  });
}

}  // namespace
}  // namespace regard
