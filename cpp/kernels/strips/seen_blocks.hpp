// Which blocks are counted by their number, and which are looked into (count.hpp,
// ../decode/decode.hpp).
#pragma once

#include <initializer_list>

#include "visibility.hpp"

namespace regard {
namespace {

// Blocks of a mask that a task reads between two looks at the stop signal: some milliseconds.
constexpr std::int64_t kBlocksBetweenLooks = 64;

// Where `count` stops that begins with `key`.
template <class Shape>
REGARD_INLINE std::int64_t end_of_count(bool reads_masks, const KeyInterval& keys) {
  const std::int64_t end = keys.begin + kBlocksBetweenLooks * Shape::kBlockKeys;
  return reads_masks && end < keys.end ? end : keys.end;
}

// The first block from the one at `key` on, and before the one at `end`, of which a key is seen, or
// may be.
template <class Shape>
REGARD_INLINE std::int64_t next_block_seen(const SeenKeys& seen, std::int64_t key,
                                           std::int64_t end) {
  std::int64_t next = end;
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    if (!is_empty(keys) && keys.end > key && keys.begin < next) next = keys.begin;
  return next < key ? key : key + (next - key) / Shape::kBlockKeys * Shape::kBlockKeys;
}

// How many blocks from the one at `key` on are seen as a whole.
template <class Shape>
REGARD_INLINE std::int64_t whole_blocks_seen(const SeenKeys& seen, std::int64_t key) {
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    if (key >= keys.begin && key < keys.end) return (keys.end - key) / Shape::kBlockKeys;
  return 0;
}

}  // namespace
}  // namespace regard
