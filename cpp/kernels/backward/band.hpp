// Sets up a band of queries: the positions of its strips, and the operands of the products, in
// lanes and as rows.
#pragma once

#include "../strips/lanes.hpp"
#include "backward_workspace.hpp"

namespace regard {
namespace {

template <class Factors, class T>
REGARD_INLINE bool are_finite(RowsOfBand<T>& rows, int row_count, std::int64_t columns) {
  if (rows.are_finite < 0)
    rows.are_finite = Factors::are_finite(
        rows.from, rows.stride, (row_count + Factors::kRowsOfElement - 1) / Factors::kRowsOfElement,
        columns);
  return rows.are_finite != 0;
}

// Sets the workspace to each band of the rows in order, and calls body(). Bands depend only on the
// lengths, whatever the mask is, because the gradients of a key are summed band by band.
template <class Shape, class Body, class T = typename Shape::Element>
REGARD_INLINE void for_bands(std::int64_t row_begin, std::int64_t row_end,
                             BackwardWorkspace<Shape>& work, Body body) {
  for (std::int64_t row = row_begin; row < row_end; row += kBandLanes<Shape>) {
    work.rows =
        static_cast<int>(row_end - row < kBandLanes<Shape> ? row_end - row : kBandLanes<Shape>);
    work.strip_count = (work.rows + Shape::kStripLanes - 1) / Shape::kStripLanes;
    for (int s = 0; s < work.strip_count; ++s) {
      BackwardStrip<T>& strip = work.strips[s];
      const int left = work.rows - s * Shape::kStripLanes;
      strip.first_row = row + s * Shape::kStripLanes;
      strip.rows = left < Shape::kStripLanes ? left : Shape::kStripLanes;
      strip.vectors = Shape::vectors_for(strip.rows);
    }
    body();
  }
}

// The band's rows of an array, in whole vectors: in place if they are stored that way, otherwise
// copied.
template <class Shape, class Factors, class T = typename Shape::Element>
REGARD_NOINLINE RowsOfBand<T> rows_of_band(const AttentionProblem& problem, const Operand& operand,
                                           const void* data, const BackwardWorkspace<Shape>& work,
                                           std::int64_t columns, T* copy,
                                           std::int64_t padded_columns) {
  if (!copies_band_rows<Shape, Factors>(problem, operand, columns))
    return {static_cast<const T*>(data) + work.strips[0].first_row * operand.row_stride,
            operand.row_stride, -1};
  with_input_element<T>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* rows[Shape::kStripLanes];
    for (int s = 0; s < work.strip_count; ++s) {
      const BackwardStrip<T>& strip = work.strips[s];
      row_pointers(problem, operand, data, strip, 0, rows);
      T* const to = copy + s * Shape::kStripLanes * padded_columns;
      for (int lane = 0; lane < strip.rows; ++lane)
        copy_padded<T>(rows[lane], 0, operand.column_stride, 1, columns, to + lane * padded_columns,
                       1, padded_columns);
    }
  });
  return {copy, padded_columns, -1};
}

template <class T>
REGARD_INLINE T dot(const T* a, const T* b, std::int64_t count) {
  Vec<T> sums{};
  for (std::int64_t i = 0; i < count; i += kLanes<T>) sums = fma(load(a + i), load(b + i), sums);
  T sum = sums[0];
  for (int lane = 1; lane < kLanes<T>; ++lane) sum += sums[lane];
  return sum;
}

// Computes D = rowsum(grad_output output) - grad_lse.
template <class Shape, class Factors, class T = typename Shape::Element>
REGARD_NOINLINE void find_deltas(const BackwardProblem& problem, const BackwardTask& task,
                                 BackwardWorkspace<Shape>& work) {
  const AttentionProblem& forward = problem.forward;
  const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
  work.grad_output_rows =
      rows_of_band<Shape, Factors>(forward, problem.grad_output, task.grad_output, work,
                                   forward.value_dim, work.copied_grad_output_rows, value_dim);
  Factors::round_grad_output(work, value_dim);
  const RowsOfBand<T> outputs = rows_of_band<Shape, Factors>(
      forward, forward.output, static_cast<const void*>(task.forward.output), work,
      forward.value_dim, work.copied_output_rows, value_dim);
  for (int row = 0; row < kBandLanes<Shape>; ++row) work.delta[row] = T(0);
  for (int row = 0; row < work.rows; ++row)
    work.delta[row] = dot(work.grad_output_rows.from + row * work.grad_output_rows.stride,
                          outputs.from + row * outputs.stride, value_dim);
  for (int s = 0; task.grad_lse && s < work.strip_count; ++s)
    for_numbers_of_rows<Shape>(
        forward, problem.grad_lse, task.grad_lse, work.strips[s],
        [&](int lane, double gradient) { work.strips[s].delta[lane] -= static_cast<T>(gradient); });
}

// Transposes the band's queries and output gradients into lanes, and finds its lse and D.
template <class Shape, class Factors, class T = typename Shape::Element>
REGARD_NOINLINE void pack_band(const BackwardProblem& problem, const BackwardTask& task,
                               BackwardWorkspace<Shape>& work) {
  const AttentionProblem& forward = problem.forward;
  work.query_rows = rows_of_band<Shape, Factors>(forward, forward.query, task.forward.query, work,
                                                 forward.head_dim, work.copied_query_rows,
                                                 padded_dim<Shape>(forward.head_dim));
  find_deltas<Shape, Factors>(problem, task, work);
  for (int s = 0; s < work.strip_count; ++s) {
    const BackwardStrip<T>& strip = work.strips[s];
    if (!strip.sees_some) continue;
    const auto to_lanes = [&](const RowsOfBand<T>& band, std::int64_t columns, T* to) {
      const T* rows[Shape::kStripLanes];
      for (int lane = 0; lane < strip.rows; ++lane)
        rows[lane] = band.from + (s * Shape::kStripLanes + lane) * band.stride;
      rows_to_lanes<T>(rows, strip.rows, 1, columns, to, Shape::kStripLanes, Identity{});
      fill_lanes<Shape>(strip, columns, Vec<T>{}, to);
    };
    to_lanes(work.query_rows, forward.head_dim, strip.queries);
    to_lanes(work.grad_output_rows, forward.value_dim, strip.grad_outputs);
    Factors::finish_lanes(forward, strip);
    load_lse<Shape>(forward, task.forward, strip, strip.lse);
  }
  Factors::finish_rows(forward, work);
}

}  // namespace
}  // namespace regard
