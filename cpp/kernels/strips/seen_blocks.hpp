// Determines which blocks are counted arithmetically and which are inspected (count.hpp,
// ../decode/decode.hpp).
#pragma once

#include <initializer_list>

#include "visibility.hpp"

namespace regard {
namespace {

// Number of mask blocks that a task reads between two checks of the stop signal: a few
// milliseconds.
constexpr std::int64_t kBlocksBetweenLooks = 64;

// The key at which `count` stops if it starts at keys.begin.
template <class Shape>
REGARD_INLINE std::int64_t end_of_count(bool reads_masks, const KeyInterval& keys) {
  const std::int64_t end = keys.begin + kBlocksBetweenLooks * Shape::kBlockKeys;
  return reads_masks && end < keys.end ? end : keys.end;
}

// The first block between `key` and `end` in which a key is seen, or may be.
template <class Shape>
REGARD_INLINE std::int64_t next_block_seen(const SeenKeys& seen, std::int64_t key,
                                           std::int64_t end) {
  std::int64_t next = end;
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    if (!is_empty(keys) && keys.end > key && keys.begin < next) next = keys.begin;
  return next < key ? key : key + (next - key) / Shape::kBlockKeys * Shape::kBlockKeys;
}

// The number of consecutive blocks, starting at `key`, that are entirely seen.
template <class Shape>
REGARD_INLINE std::int64_t whole_blocks_seen(const SeenKeys& seen, std::int64_t key) {
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    if (key >= keys.begin && key < keys.end) return (keys.end - key) / Shape::kBlockKeys;
  return 0;
}

}  // namespace
}  // namespace regard
