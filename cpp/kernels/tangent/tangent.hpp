// output = softmax(scores) value and its derivative along (tangent_query, tangent_key, tangent_value), for the rows of
// one task, in one pass over the keys:
//
//   tangent_output = (sum of P T value + P tangent_value) / sum - r output    r = (sum of P T) / sum = tangent_lse
//
//   for a block of keys                 keys, values and their tangents stream through L2
//     for a strip of queries            queries, outputs and their tangents stay in L2
//       scores, weights, products       block.hpp
#pragma once

#include "../backward/strip.hpp"
#include "block.hpp"
#include "table.hpp"

namespace regard {
namespace {

template <class Shape>
struct Tangent {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;

  static constexpr TangentKernels kernels() {
    return {.workspace_bytes = workspace_bytes, .begin = begin, .advance = advance, .finish = finish};
  }

  static std::int64_t workspace_bytes(const TangentProblem& problem, std::int64_t task_rows) {
    return lay_out_tangent<Shape>(problem, task_rows, nullptr);
  }

  static SeenKeys begin(const TangentProblem& problem, const TangentTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    lay_out_tangent<Shape>(problem, task.forward.row_end - task.forward.row_begin, static_cast<char*>(memory));
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    SeenKeys seen{{}, {task.forward.kv_len, 0}};
    for (int s = 0; s < work.strip_count; ++s) {
      TangentStrip<T>& strip = work.strips[s];
      const int lanes = strip.vectors * kLanes<T>;
      strip.first_row += task.forward.row_begin;
      locate_rows(forward, task.forward, strip);
      const std::int64_t group = forward.heads / forward.kv_heads;
      for (int lane = 0; strip.slopes && lane < lanes; ++lane)
        strip.slopes[lane] = slope_of<T>(forward, task.forward, (strip.first_row + lane) % group);
      pack(forward, forward.query, task.forward.query, work, strip, strip.queries);
      if (task.tangent_query)
        pack(forward, problem.tangent_query, task.tangent_query, work, strip, strip.tangent_queries);
      start_state(strip.state, lanes);
      if (forward.sinks) start_with_sinks(forward, task.forward, strip.first_row, strip.state, lanes);
      for (int lane = 0; lane < lanes; lane += kLanes<T>) store(strip.tangent_sum + lane, Vec<T>{});
      strip.is_fresh = true;
      if (!is_empty(strip.seen.keep_first)) seen.keep_first = strip.seen.keep_first;
      extend(seen.window, strip.seen.window);
    }
    return from_whole_blocks<Shape>(seen_keys(seen.keep_first, seen.window));
  }

  static void advance(const TangentProblem& problem, const TangentTask& task, std::int64_t key_begin,
                      std::int64_t key_end, void* memory) {
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += Shape::kBlockKeys) {
      const TangentKeys<T> block = provide(problem, task, work, key);
      if (block.count == 0) continue;
      for (int s = 0; s < work.strip_count; ++s) {
        TangentStrip<T>& strip = work.strips[s];
        if (!overlaps(strip.seen, key, key + Shape::kBlockKeys)) continue;
        TangentBlock<Shape>::add(problem, task, work, block, strip);
      }
    }
  }

  static void finish(const TangentProblem& problem, const TangentTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      TangentStrip<T>& strip = work.strips[s];
      const int lanes = strip.vectors * kLanes<T>;
      T* const r = strip.tangent_sum;
      for (int lane = 0; lane < lanes; lane += kLanes<T>) {
        const Vec<T> reciprocal = reciprocal_of_sum<T>(load(strip.state.sum + lane));
        store(r + lane, load<T>(r + lane) * reciprocal);
        for (std::int64_t d = 0; d < forward.value_dim; ++d) {
          T* const output = strip.output + d * lanes + lane;
          T* const tangent = strip.tangent_output + d * lanes + lane;
          const Vec<T> divided = strip.is_fresh ? Vec<T>{} : load<T>(output) * reciprocal + Vec<T>{};
          store(output, divided);
          store(tangent, strip.is_fresh ? Vec<T>{} : load<T>(tangent) * reciprocal - load<T>(r + lane) * divided);
        }
      }
      write(forward, forward.output, task.forward.output, strip, strip.output);
      write(forward, problem.tangent_output, task.tangent_output, strip, strip.tangent_output);
      if (task.forward.lse) {
        T* rows[Shape::kStripLanes];
        row_pointers(forward, forward.lse, task.forward.lse, strip, 0, rows);
        for (int lane = 0; lane < strip.rows; ++lane)
          *rows[lane] = log_sum_exp(strip.state.reference[lane], strip.state.sum[lane]);
      }
      if (task.tangent_lse) {
        T* rows[Shape::kStripLanes];
        row_pointers(forward, problem.tangent_lse, task.tangent_lse, strip, 0, rows);
        for (int lane = 0; lane < strip.rows; ++lane) *rows[lane] = r[lane];
      }
    }
  }

 private:
  REGARD_INLINE void pack(const AttentionProblem& forward, const Operand& operand, const void* data,
                          const TangentWorkspace<T>& work, const TangentStrip<T>& strip, T* to) {
    const std::int64_t padded = round_up(forward.head_dim, kLanes<T>);
    rows_of_strip_to_lanes<Shape>(rows_of_strip<Shape>(forward, operand, data, strip, forward.head_dim, work.rows, padded),
                                  strip.rows, forward.head_dim, query_scale<T>(forward), to, strip.vectors * kLanes<T>);
  }

  REGARD_INLINE void write(const AttentionProblem& forward, const Operand& operand, void* data,
                           const TangentStrip<T>& strip, const T* from) {
    with_result_element<T>(operand.element, [&](auto element) {
      using To = typename decltype(element)::Type;
      To* rows[Shape::kStripLanes];
      row_pointers(forward, operand, data, strip, 0, rows);
      lanes_to_rows(from, strip.vectors * kLanes<T>, forward.value_dim, rows, strip.rows, operand.column_stride,
                    [](Vec<T> value, int) { return value; });
    });
  }

  REGARD_INLINE bool are_finite(const BlockRows<T>& rows, int count, std::int64_t columns) {
    return !rows.from || rows_are_finite(rows.from, rows.stride, count, columns);
  }

  REGARD_NOINLINE TangentKeys<T> provide(const TangentProblem& problem, const TangentTask& task,
                                         const TangentWorkspace<T>& work, std::int64_t key) {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t left = task.forward.kv_len - key;
    const int count = static_cast<int>(left < 0 ? 0 : left < Shape::kBlockKeys ? left : Shape::kBlockKeys);
    const std::int64_t head_dim = forward.head_dim, value_dim = round_up(forward.value_dim, kRows);
    TangentKeys<T> block{};
    block.begin = key;
    block.count = count;
    block.keys = block_rows<T, kRows>(forward.key, task.forward.key, key, count, head_dim, head_dim, work.keys);
    block.tangent_keys =
        block_rows<T, kRows>(problem.tangent_key, task.tangent_key, key, count, head_dim, head_dim, work.tangent_keys);
    block.values = block_rows<T, kRows>(forward.value, task.forward.value, key, count, forward.value_dim, value_dim, work.values);
    block.tangent_values = block_rows<T, kRows>(problem.tangent_value, task.tangent_value, key, count, forward.value_dim, value_dim,
                                   work.tangent_values);
    block.values_are_finite = are_finite(block.values, count, forward.value_dim) &&
                              are_finite(block.tangent_values, count, forward.value_dim);
    return block;
  }
};

}  // namespace
}  // namespace regard
