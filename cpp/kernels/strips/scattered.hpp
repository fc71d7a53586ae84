// Blocks of which a strip sees few keys, for example those that an index has selected: the keys of
// several blocks are gathered, and the others are not read.
//
//   for several blocks       the keys that the mask shows to some lane: copied side by side
//     products               as in a block of these keys
//   for each block           scores at the keys' places -> weights, as in every block
//     values               the weights and values of its keys side by side, as in every block
//
// The bits are those of whole blocks: a product does not depend on its place in a tile, and the
// weight of a hidden key, -0.0, changes no sum.
#pragma once

#include "../kernel_table.hpp"
#include "../kv_rows.hpp"
#include "arena.hpp"
#include "sparse_mask.hpp"

namespace regard {
namespace {

// Number of rows that are prefetched before they are copied: the processor cannot predict which
// rows are read next.
constexpr int kRowsAhead = 8;

// Whether blocks may be gathered. Groups of four bits and the products of integers have their own
// layouts of a block.
REGARD_INLINE bool gathers(const AttentionProblem& problem) {
  return problem.sparse_mask && problem.sparse_mask->is_scattered &&
         problem.key.element != Element::q4_1 && problem.precision == Precision::full;
}

// The gathered keys of the blocks before `end`, in order.
struct GatheredKeys {
  std::int64_t end;
  int count;
  int next;           // the first key of the blocks that have not been computed
  std::int64_t* key;  // null if no block is gathered
};

// A block of which a strip sees more keys is not gathered.
template <class Shape>
constexpr int kMostGathered = Shape::kBlockKeys / 2;

template <class Shape>
REGARD_INLINE GatheredKeys take_gathered(const AttentionProblem& problem, Arena& arena) {
  GatheredKeys gathered{};
  if (gathers(problem)) gathered.key = arena.take<std::int64_t>(2 * Shape::kBlockKeys);
  return gathered;
}

// Writes the keys of the block at `key` that some lane sees by the mask and some lane by position.
// Returns their number.
template <class Shape, class T>
REGARD_NOINLINE int list_block(const SparseMask& mask, const StripRows<T>& strip, std::int64_t key,
                               std::int64_t* listed) {
  constexpr int kWord = 64, kWords = (Shape::kBlockKeys + kWord - 1) / kWord;
  std::uint64_t words[kWords] = {};
  for (const KeyInterval& seen : {strip.seen.keep_first, strip.seen.window}) {
    const KeyInterval keys = common(seen, {key, key + Shape::kBlockKeys});
    if (is_empty(keys)) continue;
    const KeyInterval numbered = keys_of_mask(mask, keys.begin, keys.end);
    for (int i = 0; i < strip.mask_run_count; ++i) {
      MaskRun& run = strip.mask_runs[i];
      for (const MaskSpan* span = span_after(run, numbered.begin);
           span != run.end && span->begin < numbered.end; ++span) {
        const KeyInterval own = common(numbered, {span->begin, span->end});
        for (std::int64_t k = own.begin; k < own.end; ++k) {
          const auto at = static_cast<std::uint64_t>(k - mask.first_key - key);
          words[at / kWord] |= std::uint64_t{1} << at % kWord;
        }
      }
    }
  }
  int count = 0;
  for (int w = 0; w < kWords; ++w)
    for (std::uint64_t left = words[w]; left != 0; left &= left - 1)
      listed[count++] = key + w * kWord + __builtin_ctzll(left);
  return count;
}

// Lists the keys of as many blocks from `key` on as one block's memory can hold. Lists none if the
// first block is not gathered.
template <class Shape, class T>
REGARD_NOINLINE void list_blocks(const AttentionProblem& problem, const StripRows<T>& strip,
                                 std::int64_t key, std::int64_t key_end, GatheredKeys& gathered) {
  const SparseMask& mask = *problem.sparse_mask;
  gathered.count = gathered.next = 0;
  while (key < key_end) {
    const int own = list_block<Shape>(mask, strip, key, gathered.key + gathered.count);
    if (own > kMostGathered<Shape> || gathered.count + own > Shape::kBlockKeys) break;
    gathered.count += own;
    const std::int64_t next = next_key_by_mask(mask, strip, key + Shape::kBlockKeys);
    key = next < key_end ? next / Shape::kBlockKeys * Shape::kBlockKeys : key_end;
  }
  gathered.end = key;
}

// Moves on to the block at `key`. Returns its interval of the list.
template <class Shape>
REGARD_INLINE KeyInterval next_gathered_block(std::int64_t key, GatheredKeys& gathered) {
  while (gathered.next < gathered.count && gathered.key[gathered.next] < key) ++gathered.next;
  const int begin = gathered.next;
  while (gathered.next < gathered.count && gathered.key[gathered.next] < key + Shape::kBlockKeys)
    ++gathered.next;
  return {begin, gathered.next};
}

REGARD_INLINE void prefetch_row(const KvRows& rows, std::int64_t row, std::int64_t columns) {
  if (rows.operand.column_stride != 1) return;
  const char* const first = static_cast<const char*>(row_at(rows, row));
  for (std::int64_t at = 0; at < columns * bytes_of(rows.operand.element); at += kLineBytes)
    __builtin_prefetch(first + at, 0, 2);
}

// Calls copy(i) for each listed key, after prefetching the rows that are copied later.
template <class Copy>
REGARD_INLINE void for_gathered(const KvRows& rows, std::int64_t columns,
                                const GatheredKeys& gathered, Copy copy) {
  for (int i = -kRowsAhead; i < gathered.count; ++i) {
    if (i + kRowsAhead < gathered.count) prefetch_row(rows, gathered.key[i + kRowsAhead], columns);
    if (i >= 0) copy(i);
  }
}

// Adds the scores of the block at `key` to `counts` if the block is gathered. Returns whether it is.
template <class Shape, class T>
REGARD_NOINLINE bool count_gathered(const AttentionProblem& problem, const StripRows<T>& strip,
                                    std::int64_t key, TileCounts& counts) {
  if (!gathers(problem)) return false;
  std::int64_t listed[Shape::kBlockKeys];
  const int count = list_block<Shape>(*problem.sparse_mask, strip, key, listed);
  if (count > kMostGathered<Shape>) return false;
  counts.scores += std::int64_t{strip.rows} * count;
  return true;
}

}  // namespace
}  // namespace regard
