// The keys that a query sees by its position: an interval, and the sink tokens before it. Both are
// known before any key is read. Key j is seen iff (first <= j or j is a sink token) and j < end.
#pragma once

#include "rows.hpp"

namespace regard {
namespace {

// How a strip sees a tile.
enum class TileKind : unsigned char {
  hidden,   // hidden from every lane: not computed
  visible,  // visible to every lane, nothing added
  biased,   // visible to every lane, with a bias
  hiding,   // the bias contains -inf
};

constexpr std::int64_t clamp(std::int64_t value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Holds the sum of a few 64-bit numbers, because offsets and sides of windows may have any size.
__extension__ typedef __int128 Wide;

REGARD_INLINE std::int64_t clamp_wide(Wide value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : static_cast<std::int64_t>(value);
}

REGARD_INLINE bool is_empty(const KeyInterval& keys) { return keys.begin >= keys.end; }

// The keys that window, causality and the entry's length leave visible, without sink tokens.
REGARD_INLINE KeyInterval keys_seen_from(Wide position, const AttentionProblem& problem,
                                         const AttentionTask& task) {
  const bool has_left = problem.window_left != kUnbounded;
  const bool has_right = problem.window_right != kUnbounded;
  const auto among_keys = [&](Wide key) { return clamp_wide(key, task.key_begin, task.kv_len); };
  return {has_left ? among_keys(position - problem.window_left) : task.key_begin,
          has_right ? among_keys(position + problem.window_right + 1) : task.kv_len};
}

// The sink tokens of an entry; empty if every window reaches them anyway.
REGARD_INLINE KeyInterval keep_first_of(const AttentionProblem& problem,
                                        const AttentionTask& task) {
  if (problem.window_left == kUnbounded || problem.keep_first <= task.key_begin) return {};
  return {task.key_begin, problem.keep_first < task.kv_len ? problem.keep_first : task.kv_len};
}

REGARD_INLINE KeyInterval up_to(const KeyInterval& keys, std::int64_t end) {
  return {keys.begin, keys.end < end ? keys.end : end};
}

// The keys of both intervals.
REGARD_INLINE KeyInterval common(const KeyInterval& keys, const KeyInterval& others) {
  return {keys.begin > others.begin ? keys.begin : others.begin,
          keys.end < others.end ? keys.end : others.end};
}

// Merges the two intervals into one if they meet.
REGARD_INLINE SeenKeys seen_keys(const KeyInterval& keep_first, const KeyInterval& window) {
  if (is_empty(keep_first)) return {{}, window};
  if (is_empty(window) || keep_first.end < window.begin) return {keep_first, window};
  return {{}, {keep_first.begin, window.end}};
}

// Extends `keys` to include `others`.
REGARD_INLINE void extend(KeyInterval& keys, const KeyInterval& others) {
  if (is_empty(others)) return;
  if (others.begin < keys.begin) keys.begin = others.begin;
  if (others.end > keys.end) keys.end = others.end;
}

// Whether one of the keys [begin, end) is seen.
REGARD_INLINE bool overlaps(const SeenKeys& seen, std::int64_t begin, std::int64_t end) {
  const auto meets = [=](const KeyInterval& keys) {
    return !is_empty(keys) && keys.begin < end && keys.end > begin;
  };
  return meets(seen.window) || meets(seen.keep_first);
}

// Whether all of the keys [begin, end) are seen.
REGARD_INLINE bool holds(const SeenKeys& seen, std::int64_t begin, std::int64_t end) {
  return (begin >= seen.window.begin && end <= seen.window.end) ||
         (begin >= seen.keep_first.begin && end <= seen.keep_first.end);
}

// The shortest interval that contains all visible keys of the block of `count` keys at
// `block_begin`, relative to `block_begin`. Empty if no key is visible.
REGARD_INLINE KeyInterval seen_of_block(const SeenKeys& seen, std::int64_t block_begin,
                                        std::int64_t count) {
  const auto within = [=](const KeyInterval& keys) {
    return KeyInterval{clamp(keys.begin - block_begin, 0, count),
                       clamp(keys.end - block_begin, 0, count)};
  };
  const KeyInterval window = within(seen.window);
  if (is_empty(seen.keep_first)) return window;
  const KeyInterval keep_first = within(seen.keep_first);
  if (is_empty(keep_first)) return window;
  return is_empty(window) ? keep_first : KeyInterval{keep_first.begin, window.end};
}

// Extends the visible keys to the beginning of a block, for `advance`. Two intervals remain only if
// no chunk contains parts of both.
template <class Shape>
REGARD_INLINE SeenKeys from_whole_blocks(const SeenKeys& seen) {
  const auto round_down = [](std::int64_t key, std::int64_t multiple) {
    return key / multiple * multiple;
  };
  if (is_empty(seen.keep_first))
    return {{}, {round_down(seen.window.begin, Shape::kBlockKeys), seen.window.end}};
  const std::int64_t begin = round_down(seen.keep_first.begin, Shape::kBlockKeys);
  if (is_empty(seen.window)) return {{}, {begin, seen.keep_first.end}};
  const std::int64_t chunk = round_down(seen.window.begin, Shape::kChunkKeys);
  if (chunk < seen.keep_first.end) return {{}, {begin, seen.window.end}};
  return {{begin, seen.keep_first.end}, {chunk, seen.window.end}};
}

// Whether all queries see the same keys and positions do not matter, as in most calls that are
// neither causal nor windowed.
REGARD_INLINE bool all_rows_see_all(const AttentionProblem& problem) {
  return problem.window_left == kUnbounded && problem.window_right == kUnbounded &&
         !problem.alibi_slopes.data && !problem.distance_bias.data && !problem.score_function &&
         problem.dropout_factor == 0;
}

// The shortest interval that contains all keys seen by the rows [row_begin, row_end), if there are
// no sink tokens.
REGARD_INLINE KeyInterval keys_seen_by_rows(const AttentionProblem& problem,
                                            const AttentionTask& task, std::int64_t row_begin,
                                            std::int64_t row_end) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  const auto seen_by = [&](std::int64_t row) {
    return keys_seen_from(static_cast<Wide>(row / group) + task.query_offset, problem, task);
  };
  return {seen_by(row_begin).begin, seen_by(row_end - 1).end};
}

// Fills in the positions of the strip's queries. Lanes beyond the last row repeat it.
template <class T>
REGARD_NOINLINE void locate_rows(const AttentionProblem& problem, const AttentionTask& task,
                                 StripRows<T>& strip) {
  strip.keep_first = keep_first_of(problem, task);
  if (all_rows_see_all(problem)) {
    strip.seen = strip.shared = {{}, {task.key_begin, task.kv_len}};
    for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
      strip.first_key[lane] = task.key_begin;
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
  // Both ends increase with the lane.
  const int last = strip.rows - 1;
  const auto seen = [&](int first_lane, int end_lane) {
    const std::int64_t end = strip.end_key[end_lane];
    return seen_keys(up_to(strip.keep_first, end), {strip.first_key[first_lane], end});
  };
  strip.seen = seen(0, last);
  strip.shared = seen(last, 0);
}

// The range of vectors that may see some of the keys [begin, end) by position; the other vectors
// see none of them. The range begins or ends with the strip.
template <class T>
REGARD_INLINE VectorRange vectors_that_see(const StripRows<T>& strip, std::int64_t begin,
                                           std::int64_t end) {
  // Both ends increase with the lane.
  VectorRange seeing{0, strip.vectors};
  while (seeing.begin < seeing.end - 1 &&
         strip.end_key[(seeing.begin + 1) * kLanes<T> - 1] <= begin)
    ++seeing.begin;
  if (seeing.begin > 0 || begin < strip.keep_first.end) return seeing;
  while (seeing.end > 1 && strip.first_key[(seeing.end - 1) * kLanes<T>] >= end) --seeing.end;
  return seeing;
}

}  // namespace
}  // namespace regard
