// Transposes a strip's rows of arrays into lanes, and back.
#pragma once

#include "../elements.hpp"
#include "../hadamard.hpp"
#include "../pack.hpp"
#include "rows.hpp"
#include "score_rule.hpp"

namespace regard {
namespace {

// Fills the vectors of lanes beyond the last row of a strip. Only strips of a fixed width have any.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void fill_lanes(const StripRows<T>& strip, std::int64_t columns, Vec<T> value,
                              T* to) {
  for (int lane = (strip.rows + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
       lane < strip.vectors * kLanes<T>; lane += kLanes<T>)
    for (std::int64_t column = 0; column < columns; ++column)
      store(to + column * Shape::kStripLanes + lane, value);
}

// to[column][kStripLanes] = op(the strip's rows of an array). Lanes of the strip's vectors beyond
// the last row are op(0).
template <class Shape, class Op, class T = typename Shape::Element>
REGARD_INLINE void pack_rows(const AttentionProblem& problem, const Operand& operand,
                             const void* data, const StripRows<T>& strip, std::int64_t columns,
                             T* to, Op op) {
  with_input_element<T>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* rows[Shape::kStripLanes];
    row_pointers(problem, operand, data, strip, 0, rows);
    rows_to_lanes<T>(rows, strip.rows, operand.column_stride, columns, to, Shape::kStripLanes, op);
  });
  fill_lanes<Shape>(strip, columns, op(Vec<T>{}), to);
}

// The strip's rows of an array = op(from[column][kStripLanes], first lane of a vector).
template <class Shape, class Op, class T = typename Shape::Element>
REGARD_INLINE void unpack_rows(const AttentionProblem& problem, const Operand& operand, void* data,
                               const StripRows<T>& strip, std::int64_t first_column,
                               std::int64_t columns, const T* from, Op op) {
  with_result_element<T>(operand.element, [&](auto element) {
    using To = typename decltype(element)::Type;
    To* rows[Shape::kStripLanes];
    row_pointers(problem, operand, data, strip, first_column, rows);
    lanes_to_rows(from, Shape::kStripLanes, columns, rows, strip.rows, operand.column_stride, op);
  });
}

// Whether queries must be rotated, as quantized keys are.
REGARD_INLINE bool rotates_queries(const AttentionProblem& problem) {
  return is_quantized(problem.key.element) && !problem.are_keys_upright;
}

// factor (query . mean), for queries in lanes.
template <class T, class QueryAt>
REGARD_INLINE Vec<T> score_of_mean(const float* mean, std::int64_t head_dim, Vec<T> factor,
                                   QueryAt query_at) {
  Vec<T> sum{};
  for (std::int64_t d = 0; d < head_dim; ++d)
    sum = fma(query_at(d), broadcast(static_cast<T>(mean[d])), sum);
  return sum * factor;
}

// to[head_dim][kStripLanes] = the strip's queries, or their tangents. If there is a mean of the
// keys, also computes its scores, of queries that are not rotated yet.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void pack_queries(const AttentionProblem& problem, const Operand& operand,
                                  const void* data, const StripRows<T>& strip, T* to,
                                  const float* mean = nullptr) {
  const bool rotates = rotates_queries(problem);
  const Vec<T> share = broadcast(
      rotates ? static_cast<T>(query_share(problem.key.element, problem.head_dim)) : T(1));
  pack_rows<Shape>(problem, operand, data, strip, problem.head_dim, to,
                   [=](Vec<T> value) { return value * share; });
  for (int lane = 0; rotates && lane < strip.vectors * kLanes<T>; lane += kLanes<T>) {
    if (mean)
      store(strip.mean_scores + lane,
            score_of_mean<T>(
                mean, problem.head_dim, load(strip.scales + lane) / share,
                [&](std::int64_t d) { return load<T>(to + lane + d * Shape::kStripLanes); }));
    rotate_lanes<T>(to + lane, Shape::kStripLanes, problem.head_dim);
  }
}

// Calls use(lane, number) for an array of one number per row.
template <class Shape, class Use, class T = typename Shape::Element>
REGARD_INLINE void for_numbers_of_rows(const AttentionProblem& problem, const Operand& operand,
                                       const void* data, const StripRows<T>& strip, Use use) {
  with_input_element<double>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* rows[Shape::kStripLanes];
    row_pointers(problem, operand, data, strip, 0, rows);
    for (int lane = 0; lane < strip.rows; ++lane)
      use(lane, static_cast<double>(widen(*rows[lane])));
  });
}

// Writes one number per row, if the array exists.
template <class Shape, class E = typename Shape::Element, class NumberOf,
          class T = typename Shape::Element>
REGARD_INLINE void write_numbers_of_rows(const AttentionProblem& problem, const Operand& operand,
                                         void* data, const StripRows<T>& strip,
                                         NumberOf number_of) {
  if (!data) return;
  E* rows[Shape::kStripLanes];
  row_pointers(problem, operand, data, strip, 0, rows);
  for (int lane = 0; lane < strip.rows; ++lane) *rows[lane] = static_cast<E>(number_of(lane));
}

// The rows' lse, from which weights are computed. It is 0 beyond the last row, and for all rows if
// the caller did not pass an lse.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void load_lse(const AttentionProblem& problem, const AttentionTask& task,
                              const StripRows<T>& strip, const RowLse<T>& lse) {
  for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane)
    lse.high[lane] = lse.low[lane] = T(0);
  if (!task.lse) return;
  for_numbers_of_rows<Shape>(problem, problem.lse, task.lse, strip, [&](int lane, double number) {
    lse.high[lane] = nearest_finite<T>(number);
    const double rest = number - static_cast<double>(lse.high[lane]);
    lse.low[lane] = rest == rest ? static_cast<T>(rest) : T(0);  // of an infinite lse
  });
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void write_lse(const AttentionProblem& problem, const AttentionTask& task,
                               const StripRows<T>& strip, const SoftmaxState<T>& state) {
  const auto lse_of = [&](int lane) { return log_sum_exp(state.reference[lane], state.sum[lane]); };
  if (problem.lse.element == Element::float64)
    write_numbers_of_rows<Shape, double>(problem, problem.lse, task.lse, strip, lse_of);
  else
    write_numbers_of_rows<Shape, float>(problem, problem.lse, task.lse, strip, lse_of);
}

}  // namespace
}  // namespace regard
