// How a task's strips begin: where their queries stand, the queries packed into lanes.
#pragma once

#include "../elements.hpp"
#include "../int8/hadamard.hpp"
#include "../pack.hpp"
#include "visibility.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// Lays the workspace out and finds what every strip sees by position. Returns the union, from whole
// blocks on.
template <class Shape>
REGARD_NOINLINE SeenKeys locate_strips(const AttentionProblem& problem,
                                       const AttentionTask& task, void* memory) {
  using T = typename Shape::Element;
  lay_out<Shape>(problem, task.row_end - task.row_begin, static_cast<char*>(memory));
  const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
  SeenKeys seen{{}, {task.kv_len, 0}};
  for (int s = 0; s < work.strip_count; ++s) {
    Strip<T>& strip = work.strips[s];
    strip.first_row += task.row_begin;
    locate_rows(problem, task, strip);
    if (strip.slopes) {
      const std::int64_t group = problem.heads / problem.kv_heads;
      for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane)
        strip.slopes[lane] = slope_of<T>(problem, task, (strip.first_row + lane) % group);
    }
    if (!is_empty(strip.seen.sink_tokens)) seen.sink_tokens = strip.seen.sink_tokens;
    extend(seen.window, strip.seen.window);
  }
  return from_whole_blocks<Shape>(seen_keys(seen.sink_tokens, seen.window));
}

// Keys of int8 are stored rotated, and meet queries that are.
REGARD_INLINE bool rotates_queries(const AttentionProblem& problem) {
  return problem.key.element == Element::int8;
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const Strip<T>& strip) {
  const bool rotates = rotates_queries(problem);
  const T scale = query_scale<T>(problem), first = rotates ? T(1) : scale;
  const int lanes = strip.vectors * kLanes<T>;
  with_input_element<T>(problem.query.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* rows[Shape::kStripLanes];
    row_pointers(problem, problem.query, task.query, strip, 0, rows);
    rows_to_lanes<T>(rows, strip.rows, problem.query.column_stride, problem.head_dim,
                     strip.queries, lanes, [=](Vec<T> value) { return value * broadcast(first); });
  });
  for (int lane = 0; rotates && lane < lanes; lane += kLanes<T>) {
    rotate_lanes<T>(strip.queries + lane, lanes, problem.head_dim);
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      T* at = strip.queries + d * lanes + lane;
      store(at, load<T>(at) * broadcast(scale));
    }
  }
}

// Asks for one of `parts` parts of the rows that a strip will write in the end, all of which would fill
// the processor's queue. Inline, or GCC takes a call that only prefetches for one that does nothing.
template <class T>
REGARD_INLINE void prefetch_output(const AttentionProblem& problem, const AttentionTask& task,
                                   const StripRows<T>& strip, int part, int parts) {
  if (problem.output.column_stride != 1) return;
  const std::int64_t bytes = bytes_of(problem.output.element);
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (int lane = strip.rows * part / parts; lane < strip.rows * (part + 1) / parts; ++lane) {
    std::int64_t query = strip.first_row + lane, head = 0;
    if (group > 1) {
      head = query % group;
      query /= group;
    }
    const char* row = static_cast<const char*>(task.output) +
                      (query * problem.output.row_stride + head * problem.output.head_stride) * bytes;
    for (std::int64_t byte = 0; byte < problem.value_dim * bytes; byte += 64)
      __builtin_prefetch(row + byte, 1);
  }
}

}  // namespace
}  // namespace regard
