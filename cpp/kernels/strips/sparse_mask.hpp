// A sparse mask over a strip. A mixed block becomes bytes in the format of a bool mask
// (bool_mask.hpp), so both kinds of masks return the same tiles and the same bits.
#pragma once

#include <initializer_list>

#include "visibility.hpp"

namespace regard {
namespace {

// Converts keys of the problem to the numbering of spans, limited to the keys of the mask.
REGARD_INLINE KeyInterval keys_of_mask(const SparseMask& mask, std::int64_t begin,
                                       std::int64_t end) {
  end = end < mask.kv_len ? end : mask.kv_len;
  return {begin + mask.first_key, end + mask.first_key};
}

// The first span that ends after `key`. Searches go through the keys in order, so they begin at the
// previous result, with steps that double, and end with a binary search of the last step.
REGARD_INLINE const MaskSpan* span_after(MaskRun& run, std::int64_t key) {
  const MaskSpan* first = run.last;
  if (first != run.begin && first[-1].end > key) first = run.begin;
  std::int64_t count = run.end - first;
  for (std::int64_t step = 1; step <= count; step *= 2) {
    if (first[step - 1].end > key) {
      count = step - 1;
      break;
    }
    first += step;
    count -= step;
  }
  while (count > 0) {
    const std::int64_t half = count / 2;
    if (first[half].end <= key) {
      first += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  run.last = first;
  return first;
}

// Finds the spans of every lane, and limits the keys that the strip sees to the keys that the spans
// reach.
template <class T>
REGARD_NOINLINE void find_mask_runs(const AttentionProblem& problem, const AttentionTask& task,
                                    StripRows<T>& strip) {
  const SparseMask& mask = *problem.sparse_mask;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const std::int64_t query = strip.first_row / group;
  std::int64_t head = strip.first_row % group;
  const std::int64_t first = query * mask.query_stride + task.mask_query;
  std::int64_t row = first / mask.row_queries, within = first % mask.row_queries;
  const std::int64_t* before = nullptr;
  KeyInterval reached{INT64_MAX, 0};
  strip.mask_run_count = 0;
  strip.mask_here = strip.mask_next = INT64_MIN;
  for (int lane = 0; lane < strip.rows; ++lane) {
    const std::int64_t* const start = task.mask_starts + row + head * mask.starts.head_stride;
    if (start != before) {
      const MaskSpan* const first = mask.spans + start[0];
      const MaskRun run{first, mask.spans + start[1], first, 0};
      strip.mask_runs[strip.mask_run_count++] = run;
      if (run.begin != run.end)
        extend(reached, {run.begin->begin - mask.first_key, run.end[-1].end - mask.first_key});
      before = start;
    }
    strip.mask_runs[strip.mask_run_count - 1].end_lane = lane + 1;
    strip.mask_queries[lane] = within;
    if (++head < group) continue;
    head = 0;
    within += mask.query_stride;
    if (within < mask.row_queries) continue;
    within = 0;
    ++row;
  }
  const auto limit = [&](KeyInterval& keys) {
    keys = common(keys, up_to(reached, mask.kv_len));
    if (is_empty(keys)) keys = {};
  };
  limit(strip.seen.keep_first);
  limit(strip.seen.window);
}

// The visibility of some keys to a strip by the mask.
struct MaskSight {
  TileKind kind;     // visible: every lane sees exactly `keys`; hiding: lanes differ
  KeyInterval keys;  // numbered as in the problem
};

template <class T>
REGARD_NOINLINE MaskSight sight_of_mask(const AttentionProblem& problem, const StripRows<T>& strip,
                                        std::int64_t begin, std::int64_t end) {
  const SparseMask& mask = *problem.sparse_mask;
  if (begin >= mask.kv_len) return {TileKind::hidden, {}};
  const KeyInterval keys = keys_of_mask(mask, begin, end);
  KeyInterval seen{};
  for (MaskRun* run = strip.mask_runs; run < strip.mask_runs + strip.mask_run_count; ++run) {
    const MaskSpan* const span = span_after(*run, keys.begin);
    KeyInterval own{};
    if (span != run->end && span->begin < keys.end) {
      own = common(keys, {span->begin, span->end});
      const bool sees_more = span + 1 != run->end && span[1].begin < keys.end;
      if (sees_more || span->block != kWholeSpan) return {TileKind::hiding, {}};
    }
    if (run == strip.mask_runs)
      seen = own;
    else if (own.begin != seen.begin || own.end != seen.end)
      return {TileKind::hiding, {}};
  }
  if (is_empty(seen)) return {TileKind::hidden, {}};
  return {TileKind::visible, {seen.begin - mask.first_key, seen.end - mask.first_key}};
}

// The first key, at `key` or later, that some lane sees by the mask, or INT64_MAX.
template <class T>
REGARD_INLINE std::int64_t next_key_by_mask(const SparseMask& mask, const StripRows<T>& strip,
                                            std::int64_t key) {
  const std::int64_t from = key + mask.first_key;
  std::int64_t next = INT64_MAX;
  for (MaskRun* run = strip.mask_runs; run < strip.mask_runs + strip.mask_run_count; ++run) {
    const MaskSpan* const span = span_after(*run, from);
    if (span == run->end) continue;
    if (span->begin <= from) return key;
    if (span->begin < next) next = span->begin;
  }
  return next == INT64_MAX ? next : next - mask.first_key;
}

// Whether a located strip may see one of the keys [begin, end): some lane sees it by the mask, and
// some lane by position. The result is true for a chunk iff it is true for one of its pieces, and
// for a piece iff it is true for one of its blocks.
template <class T>
REGARD_INLINE bool sees_keys(const AttentionProblem& problem, const StripRows<T>& strip,
                             std::int64_t begin, std::int64_t end) {
  if (__builtin_expect(!problem.sparse_mask, true)) return overlaps(strip.seen, begin, end);
  for (const KeyInterval& seen : {strip.seen.keep_first, strip.seen.window}) {
    const KeyInterval keys = common(seen, {begin, end});
    if (!is_empty(keys) && next_key_by_mask(*problem.sparse_mask, strip, keys.begin) < keys.end)
      return true;
  }
  return false;
}

// Whether the rows [row_begin, row_end) may see one of the keys [begin, end) by the mask, without
// locating the rows.
REGARD_INLINE bool may_see_by_mask(const AttentionProblem& problem, const AttentionTask& task,
                                   std::int64_t row_begin, std::int64_t row_end, std::int64_t begin,
                                   std::int64_t end) {
  const SparseMask& mask = *problem.sparse_mask;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const std::int64_t heads = mask.starts.head_stride == 0 ? 1 : group;
  const auto row_of = [&](std::int64_t row) {
    return (row / group * mask.query_stride + task.mask_query) / mask.row_queries;
  };
  const std::int64_t first = row_of(row_begin), last = row_of(row_end - 1);
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t* const starts = task.mask_starts + head * mask.starts.head_stride;
    for (std::int64_t row = first; row <= last; ++row) {
      if (starts[row] == starts[row + 1]) continue;
      if (mask.spans[starts[row]].begin < end + mask.first_key &&
          mask.spans[starts[row + 1] - 1].end > begin + mask.first_key)
        return true;
    }
  }
  return false;
}

// The first block, at `key` or later and before `end`, in which a strip may see a key. Without a
// sparse mask, this is `key` itself. A whole run of hidden blocks costs one search. Each strip
// stores the first key that it sees by the mask from there.
template <class Shape, class Strip>
REGARD_INLINE std::int64_t next_block_by_mask(const AttentionProblem& problem, Strip* strips,
                                              int count, std::int64_t key, std::int64_t end) {
  if (__builtin_expect(!problem.sparse_mask, true)) return key;
  std::int64_t next = end;
  for (Strip* strip = strips; strip < strips + count; ++strip) {
    strip->mask_here = strip->mask_next;
    if (strip->mask_next < key)
      strip->mask_next = next_key_by_mask(*problem.sparse_mask, *strip, key);
    if (strip->mask_next < next && strip->mask_next < problem.sparse_mask->kv_len)
      next = strip->mask_next;
  }
  if (next < key) next = key;
  return next >= end ? end : key + (next - key) / Shape::kBlockKeys * Shape::kBlockKeys;
}

// Calls body(key, next) for each block in [begin, end) in which a strip may see a key, and for the
// block after it. `begin` is the beginning of a block.
template <class Shape, class Strip, class Body>
REGARD_INLINE void over_blocks_seen(const AttentionProblem& problem, Strip* strips, int count,
                                    std::int64_t begin, std::int64_t end, Body body) {
  const auto block_from = [&](std::int64_t key) {
    return next_block_by_mask<Shape>(problem, strips, count, key, end);
  };
  std::int64_t next;
  for (std::int64_t key = block_from(begin); key < end; key = next) {
    next = block_from(key + Shape::kBlockKeys);
    body(key, next);
  }
}

// Whether a strip may see a key of the block at `key`, after next_block_by_mask has found this
// block and the next one.
template <class Shape, class T>
REGARD_INLINE bool sees_block(const StripRows<T>& strip, std::int64_t key) {
  return overlaps(strip.seen, key, key + Shape::kBlockKeys) &&
         (!strip.mask_runs || strip.mask_here < key + Shape::kBlockKeys);
}

// Eight bits as eight bytes of 0 or 1.
REGARD_INLINE std::uint64_t bytes_of_bits(unsigned bits) {
  const std::uint64_t apart = bits * 0x0101010101010101u & 0x8040201008040201u;
  return (apart + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}

// to[i] = bit `first` + i of a query, for `count` bits. Up to 7 bytes after them become 0.
REGARD_INLINE void write_bits(const unsigned char* bits, std::int64_t bytes, std::int64_t first,
                              std::int64_t count, unsigned char* to) {
  for (std::int64_t i = 0; i < count; i += 8) {
    const std::int64_t byte = (first + i) / 8;
    unsigned eight = bits[byte];
    if (byte + 1 < bytes) eight |= static_cast<unsigned>(bits[byte + 1]) << 8;
    eight = eight >> ((first + i) % 8) & 0xff;
    if (count - i < 8) eight &= (1u << (count - i)) - 1;
    const std::uint64_t word = bytes_of_bits(eight);
    __builtin_memcpy(to + i, &word, sizeof word);
  }
}

constexpr int kMaskRoom = 8;  // bytes after a row that may be overwritten

// Writes a lane's mask for keys [begin, end), 1 for each visible key. There is room after the mask.
// Returns whether other lanes of the run may see other keys.
template <class T>
REGARD_NOINLINE bool write_mask_row(const SparseMask& mask, const StripRows<T>& strip, int lane,
                                    MaskRun& run, std::int64_t begin, std::int64_t end,
                                    unsigned char* to) {
  const KeyInterval keys = keys_of_mask(mask, begin, end);
  __builtin_memset(to, 0, static_cast<std::size_t>(end - begin));
  if (is_empty(keys)) return false;
  bool differs = false;
  for (const MaskSpan* span = span_after(run, keys.begin);
       span != run.end && span->begin < keys.end; ++span) {
    const KeyInterval own = common(keys, {span->begin, span->end});
    const std::int64_t count = own.end - own.begin;
    unsigned char* const at = to + (own.begin - keys.begin);
    if (span->block == kWholeSpan) {
      if (count <= 8) {  // what follows is 0 so far
        const std::uint64_t ones = 0x0101010101010101u >> (8 * (8 - count));
        __builtin_memcpy(at, &ones, sizeof ones);
      } else {
        __builtin_memset(at, 1, static_cast<std::size_t>(count));
      }
      continue;
    }
    differs = true;
    const unsigned char* const bits =
        mask.bits +
        (span->block * mask.row_queries + strip.mask_queries[lane]) * mask.bytes_of_query;
    write_bits(bits, mask.bytes_of_query, own.begin - span->begin, count, at);
  }
  return differs;
}

// Writes the masks of all lanes for keys [begin, end), and points each lane to its mask. Lanes that
// see the same keys share a mask. `bytes` has room for lanes * (end - begin + kMaskRoom) bytes.
template <class T>
REGARD_NOINLINE void write_mask_rows(const SparseMask& mask, const StripRows<T>& strip,
                                     std::int64_t begin, std::int64_t end, unsigned char* bytes,
                                     const unsigned char** rows) {
  const std::int64_t pitch = end - begin + kMaskRoom;
  int lane = 0;
  for (MaskRun* run = strip.mask_runs; run < strip.mask_runs + strip.mask_run_count; ++run) {
    bool differs = true;
    for (; lane < run->end_lane; ++lane) {
      unsigned char* const row = bytes + lane * pitch;
      rows[lane] = differs ? row : rows[lane - 1];
      if (differs) differs = write_mask_row(mask, strip, lane, *run, begin, end, row);
    }
  }
  for (; lane < strip.vectors * kLanes<T>; ++lane) rows[lane] = rows[lane - 1];
}

}  // namespace
}  // namespace regard
