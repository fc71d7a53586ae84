// Counts the work of strips: blocks that all rows see, and blocks that no row sees, are counted
// arithmetically unless a mask is read, so the cost of a strip is the cost of its edges.
#pragma once

#include <initializer_list>

#include "sparse_mask.hpp"

namespace regard {
namespace {

// Number of mask blocks that a task reads between two checks of the stop signal: a few
// milliseconds.
constexpr std::int64_t kBlocksBetweenLooks = 64;

// The number of chunks that contain keys of `seen`.
template <class Shape>
REGARD_INLINE std::int64_t chunks_of(const SeenKeys& seen) {
  std::int64_t chunks = 0;
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    if (!is_empty(keys))
      chunks += (keys.end - 1) / Shape::kChunkKeys - keys.begin / Shape::kChunkKeys + 1;
  return chunks;
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

// Counts from keys.begin, which is the beginning of a block: calls whole(strip, keys) with a number
// of keys that all lanes see, in whole blocks, and block(strip, key) for each other block in which
// some lane may see a key. Returns the key at which it stopped.
template <class Shape, class Strip, class Whole, class Block>
REGARD_INLINE std::int64_t count_blocks(const AttentionProblem& problem, Strip* strips, int count,
                                        bool reads_masks, const KeyInterval& keys, Whole whole,
                                        Block block) {
  const std::int64_t most = keys.begin + kBlocksBetweenLooks * Shape::kBlockKeys;
  const std::int64_t end = reads_masks && most < keys.end ? most : keys.end;
  for (Strip* strip = strips; strip < strips + count; ++strip) {
    const auto block_from = [&](std::int64_t key) {
      return next_block_by_mask<Shape>(problem, strip, 1,
                                       next_block_seen<Shape>(strip->seen, key, end), end);
    };
    for (std::int64_t key = block_from(keys.begin); key < end; key = block_from(key)) {
      const std::int64_t blocks = reads_masks ? 0 : whole_blocks_seen<Shape>(strip->shared, key);
      if (blocks > 0)
        whole(*strip, blocks * Shape::kBlockKeys);
      else
        block(*strip, key);
      key += (blocks > 0 ? blocks : 1) * Shape::kBlockKeys;
    }
  }
  return end;
}

}  // namespace
}  // namespace regard
