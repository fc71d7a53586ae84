// output = softmax(scores) value and its derivative along (tangent_query, tangent_key,
// tangent_value), for the rows of one task, in one pass over the keys:
//
//   tangent_output = (sum of P T value + P tangent_value) / sum - r output
//   r              = (sum of P T) / sum = tangent_lse
//
//   for a block of keys                 keys, values and their tangents stream through L2
//     for a strip of queries            queries, outputs and their tangents stay in L2
//       scores, weights, products       gathering.hpp
#pragma once

#include "../strips/lanes.hpp"
#include "../kernel_table.hpp"
#include "gathering.hpp"

namespace regard {
namespace {

template <class Shape>
struct Tangent {
  using T = typename Shape::Element;

  static constexpr TangentKernels kernels() { return {workspace_bytes, begin, advance, finish}; }

  static std::int64_t workspace_bytes(const TangentProblem& problem, std::int64_t task_rows) {
    return lay_out_tangent<Shape>(problem, task_rows, nullptr);
  }

  static SeenKeys begin(const TangentProblem& problem, const TangentTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    lay_out_tangent<Shape>(problem, task.forward.row_end - task.forward.row_begin, memory);
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    const SeenKeys seen = locate_strips(forward, task.forward, work.strips, work.strip_count);
    for (int s = 0; s < work.strip_count; ++s) {
      TangentStrip<T>& strip = work.strips[s];
      pack_queries<Shape>(forward, forward.query, task.forward.query, strip, strip.queries);
      if (task.tangent_query)
        pack_queries<Shape>(forward, problem.tangent_query, task.tangent_query, strip,
                            strip.tangent_queries);
      start_online<Shape>(forward, task.forward, strip);
    }
    return from_whole_blocks<Shape>(seen);
  }

  static void advance(const TangentProblem& problem, const TangentTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    const auto add_block = [&](std::int64_t key, std::int64_t) {
      TangentKeys<T> block{span_at<Shape>(key, task.forward.kv_len)};
      for (int s = 0; s < work.strip_count; ++s) {
        TangentStrip<T>& strip = work.strips[s];
        begin_block<Shape>(strip, key);
        if (!sees_block<Shape>(strip, key)) continue;
        TangentGathering<Shape>::add(problem, task, work, block, strip);
      }
    };
    over_blocks_seen<Shape>(problem.forward, work.strips, work.strip_count, key_begin, key_end,
                            add_block);
  }

  static void finish(const TangentProblem& problem, const TangentTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      TangentStrip<T>& strip = work.strips[s];
      merge_all<Shape>(forward, strip);
      const int lanes = strip.vectors * kLanes<T>;
      T* const r = tangent_sum<Shape>(strip);
      for (int lane = 0; lane < lanes; lane += kLanes<T>) {
        const Vec<T> reciprocal = reciprocal_of_sum<T>(load(strip.state.sum + lane));
        store(r + lane, load<T>(r + lane) * reciprocal);
        for (std::int64_t d = 0; d < forward.value_dim; ++d) {
          T* const output = outputs_of<Shape>(strip) + d * Shape::kStripLanes + lane;
          T* const tangent = tangent_outputs<Shape>(strip) + d * Shape::kStripLanes + lane;
          store(output, load<T>(output) * reciprocal + Vec<T>{});
          store(tangent, load<T>(tangent) * reciprocal - load<T>(r + lane) * load<T>(output));
        }
      }
      const auto write = [&](const Operand& operand, void* data, const T* from) {
        unpack_rows<Shape>(forward, operand, data, strip, 0, forward.value_dim, from,
                           [](Vec<T> value, int) { return value; });
      };
      write(forward.output, task.forward.output, outputs_of<Shape>(strip));
      write(problem.tangent_output, task.tangent_output, tangent_outputs<Shape>(strip));
      write_lse<Shape>(forward, task.forward, strip, strip.state);
      write_numbers_of_rows<Shape>(forward, problem.tangent_lse, task.tangent_lse, strip,
                                   [&](int lane) { return r[lane]; });
    }
  }
};

}  // namespace
}  // namespace regard
