// Which keys a query sees by its position alone: an interval, known before any key is read.
#pragma once

#include "workspace.hpp"

namespace regard {
namespace {

REGARD_INLINE std::int64_t clamp(std::int64_t value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Window, causality and the entry's number of keys.
REGARD_INLINE KeyInterval keys_seen_from(std::int64_t position, const AttentionProblem& problem,
                                         const AttentionTask& task) {
  return {clamp(position - problem.window_left, 0, task.kv_len),
          clamp(position + problem.window_right + 1, 0, task.kv_len)};
}

REGARD_INLINE bool is_empty(const KeyInterval& keys) { return keys.begin >= keys.end; }

// Fills in where the strip's queries stand, from the row of its first lane on. Lanes beyond the last
// row repeat it.
template <class T>
REGARD_NOINLINE void locate_rows(const AttentionProblem& problem, const AttentionTask& task,
                                 Strip<T>& strip) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  const int lanes = strip.vectors * kLanes<T>;
  std::int64_t query = strip.first_row / group, head = strip.first_row % group;
  KeyInterval keys{};
  for (int lane = 0; lane < lanes; ++lane) {
    if (lane < strip.rows) {
      strip.positions[lane] = query + task.query_offset;
      keys = keys_seen_from(strip.positions[lane], problem, task);
      if (++head == group) {
        head = 0;
        ++query;
      }
    } else {
      strip.positions[lane] = strip.positions[strip.rows - 1];
    }
    strip.first_key[lane] = keys.begin;
    strip.end_key[lane] = keys.end;
  }
  // Both ends grow with the lane.
  const int last = strip.rows - 1;
  strip.seen = {strip.first_key[0], strip.end_key[last]};
  strip.shared = {strip.first_key[last], strip.end_key[0]};
}

}  // namespace
}  // namespace regard
