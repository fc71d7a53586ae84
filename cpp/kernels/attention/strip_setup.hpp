// Sets a task's strips up: finds where their queries stand and packs these into lanes.
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
    if (!is_empty(strip.seen.keep_first)) seen.keep_first = strip.seen.keep_first;
    extend(seen.window, strip.seen.window);
  }
  return from_whole_blocks<Shape>(seen_keys(seen.keep_first, seen.window));
}

// Whether queries must be rotated, as stored keys of int8 are.
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

// Prefetches one of `parts` parts of some rows; all of them at once would fill the processor's queue. Inline, since GCC
// removes a call that only prefetches.
template <int kWrites>
REGARD_INLINE void prefetch_rows(const AttentionProblem& problem, const Operand& operand, const void* data,
                                 std::int64_t first_row, std::int64_t rows, std::int64_t columns, int part,
                                 int parts) {
  if (operand.column_stride != 1) return;
  const std::int64_t bytes = bytes_of(operand.element);
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (std::int64_t lane = rows * part / parts; lane < rows * (part + 1) / parts; ++lane) {
    std::int64_t query = first_row + lane, head = 0;
    if (group > 1) {
      head = query % group;
      query /= group;
    }
    const char* row = static_cast<const char*>(data) + (query * operand.row_stride + head * operand.head_stride) * bytes;
    for (std::int64_t byte = 0; byte < columns * bytes; byte += 64) __builtin_prefetch(row + byte, kWrites);
  }
}

// Prefetches the next of the rows that a strip will finally write, at every tile that it computes until it has all.
template <class Shape, class T>
REGARD_INLINE void prefetch_output(const AttentionProblem& problem, const AttentionTask& task, Strip<T>& strip) {
  constexpr int kMost = Shape::kRows / 4;
  const int left = strip.rows - strip.asked_rows, rows = left < kMost ? left : kMost;
  if (rows == 0) return;
  prefetch_rows<1>(problem, problem.output, task.output, strip.first_row + strip.asked_rows, rows, problem.value_dim,
                   0, 1);
  strip.asked_rows += rows;
}

}  // namespace
}  // namespace regard
