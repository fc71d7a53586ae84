// Which keys a query sees by its position alone: an interval, known before any key is read.
#pragma once

#include "workspace.hpp"

namespace regard {
namespace {

constexpr std::int64_t clamp(std::int64_t value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Holds the sum of a few 64-bit numbers: offsets and sides of windows may be any.
__extension__ typedef __int128 Wide;

REGARD_INLINE std::int64_t clamp_wide(Wide value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : static_cast<std::int64_t>(value);
}

// Window, causality and the entry's number of keys.
REGARD_INLINE KeyInterval keys_seen_from(Wide position, const AttentionProblem& problem,
                                         const AttentionTask& task) {
  const bool has_left = problem.window_left != kUnbounded;
  const bool has_right = problem.window_right != kUnbounded;
  return {has_left ? clamp_wide(position - problem.window_left, 0, task.kv_len) : 0,
          has_right ? clamp_wide(position + problem.window_right + 1, 0, task.kv_len)
                    : task.kv_len};
}

REGARD_INLINE bool is_empty(const KeyInterval& keys) { return keys.begin >= keys.end; }

// True where no query sees more or less than another: most calls that are neither causal nor windowed.
REGARD_INLINE bool all_rows_see_all(const AttentionProblem& problem) {
  return problem.window_left == kUnbounded && problem.window_right == kUnbounded &&
         !problem.alibi_slopes;
}

// Fills in where the strip's queries stand, from the row of its first lane on. Lanes beyond the last
// row repeat it.
template <class T>
REGARD_NOINLINE void locate_rows(const AttentionProblem& problem, const AttentionTask& task,
                                 Strip<T>& strip) {
  if (all_rows_see_all(problem)) {
    strip.seen = strip.shared = {0, task.kv_len};
    for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
      strip.first_key[lane] = 0;
      strip.end_key[lane] = task.kv_len;
    }
    return;
  }
  const std::int64_t group = problem.heads / problem.kv_heads;
  const int lanes = strip.vectors * kLanes<T>;
  std::int64_t query = strip.first_row / group, head = strip.first_row % group;
  KeyInterval keys{};
  for (int lane = 0; lane < lanes; ++lane) {
    if (lane < strip.rows) {
      const Wide position = static_cast<Wide>(query) + task.query_offset;
      strip.positions[lane] = clamp_wide(position, INT64_MIN / 2, INT64_MAX / 2);
      keys = keys_seen_from(position, problem, task);
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
