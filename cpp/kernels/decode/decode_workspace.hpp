// The working memory of one thread that decodes one kv head: a few rows of queries, one block's
// scores, and the running results.
#pragma once

#include "../for_rows.hpp"
#include "../strips/online_softmax.hpp"

namespace regard {
namespace {

constexpr int kDecodeRows = kFewRows;  // maximum; more rows fill half of a strip's lanes

// The lanes of a state: one row per lane, in whole vectors.
template <class T>
constexpr int kDecodeLanes = kDecodeRows > kLanes<T> ? kDecodeRows : kLanes<T>;

// Number of keys whose scores are computed together: whole vectors and whole tiles.
template <class Shape>
constexpr int kDecodeStep =
    kLanes<typename Shape::Element> > Shape::kRows ? kLanes<typename Shape::Element> : Shape::kRows;

// Calls `body` with the first key of each step whose bit is set, as an index within the block.
template <class Shape, class Body>
REGARD_INLINE void for_steps(std::uint32_t steps, Body body) {
  for (; steps != 0; steps &= steps - 1) body(__builtin_ctz(steps) * kDecodeStep<Shape>);
}

// A strip of a few rows. Rows are in lanes only in members that say so.
template <class T>
struct DecodeWorkspace : StripRows<T> {
  std::int64_t padded_head_dim;
  std::int64_t padded_value_dim;
  // [padded_head_dim][rows of for_rows], with zeros beyond the last row, so that one address serves
  // all rows.
  T* queries;
  T* query;                     // [padded_head_dim]: one query
  T score_factor[kDecodeRows];  // of products with int8 rows
  // [padded_head_dim][vectors of keys of a tile]; null if keys are never transposed into memory.
  T* transposed;
  T* scores;              // [kDecodeRows][block keys], later weights
  T* bias;                // [kDecodeRows][block keys]: added to scores; -inf hides
  bool has_bias;          // whether the current block has a bias
  bool hides;             // bias contains -inf for a key that is within some row's reach
  std::int64_t chunk;     // index of the current chunk
  SoftmaxState<T> state;  // of the current chunk, one lane per row
  T* output;              // [kDecodeRows][padded_value_dim], relative to the reference
  bool is_fresh;          // no block has written to output yet
  SoftmaxState<T> total;  // of the earlier chunks, merged
  T* total_output;
  bool total_is_fresh;
  T* keys;    // [block keys][padded_head_dim]: copy of a block that cannot be read in place
  T* values;  // [block keys][padded_value_dim]
  // [block keys], for rows with scales; null otherwise
  T* key_scales;
  T* value_scales;
  // [groups][scale, minimum][block keys], for q4_1 rows; null otherwise
  T* key_groups;
  T* value_groups;
  T* group_weights;  // weights times group scales, [rows][groups][block keys]; null otherwise
  T* group_sums;     // sums of weights times group minimums, [rows][groups]; null otherwise
  // For q4_1: the queries' integers, two per lane (nibble_scores.hpp), their sums by group, and
  // their steps. [head_dim / 2][rows of for_rows], [groups][rows of for_rows], [kDecodeRows]
  std::int32_t* query_pairs;
  T* query_sums;
  T* query_steps;
};

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_decode(const AttentionProblem& problem, void* memory) {
  constexpr std::int64_t kBlock = round_up(Shape::kBlockKeys, kDecodeStep<Shape>);
  Arena arena(memory);
  auto* const place = arena.take<DecodeWorkspace<T>>(1);
  DecodeWorkspace<T> work{};
  work.padded_head_dim = round_up(problem.head_dim, kLanes<T>);
  work.padded_value_dim = round_up(problem.value_dim, kLanes<T>);
  take_rows(problem, kDecodeLanes<T>, arena, work);
  work.queries = arena.take<T>(kDecodeRows * work.padded_head_dim);
  work.query = arena.take<T>(work.padded_head_dim);
  work.scores = arena.take<T>(kDecodeRows * kBlock);
  work.bias = arena.take<T>(kDecodeRows * kBlock);
  work.state = take_state<T>(kDecodeLanes<T>, arena);
  work.output = arena.take<T>(kDecodeRows * work.padded_value_dim);
  work.total = take_state<T>(kDecodeLanes<T>, arena);
  work.total_output = arena.take<T>(kDecodeRows * work.padded_value_dim);
  work.keys = arena.take<T>(kBlock * work.padded_head_dim);
  work.values = arena.take<T>(kBlock * work.padded_value_dim);
  // scores.hpp uses this memory with 16 registers, and for 16-bit rows that do not fill squares of
  // two numbers per lane.
  const bool fills_squares = problem.head_dim % (2 * kLanes<T>) == 0;
  if (Shape::kRegisterCount == 16 || (bytes_of(problem.key.element) == 2 && !fills_squares))
    work.transposed = arena.take<T>(Shape::kStripLanes * work.padded_head_dim);
  if (has_row_scales(problem.key.element)) {
    work.key_scales = arena.take<T>(kBlock);
    work.value_scales = arena.take<T>(kBlock);
  }
  if (problem.key.element == Element::q4_1) {
    work.key_groups = arena.take<T>(2 * kBlock * (problem.head_dim / kGroupOfFourBits));
    work.value_groups = arena.take<T>(2 * kBlock * (problem.value_dim / kGroupOfFourBits));
    work.group_weights =
        arena.take<T>(kDecodeRows * kBlock * (problem.value_dim / kGroupOfFourBits));
    work.group_sums = arena.take<T>(kDecodeRows * (problem.value_dim / kGroupOfFourBits));
    work.query_pairs = arena.take<std::int32_t>(kDecodeRows * problem.head_dim / 2);
    work.query_sums = arena.take<T>(kDecodeRows * (problem.head_dim / kGroupOfFourBits));
    work.query_steps = arena.take<T>(kDecodeRows);
  }
  if (place) *place = work;
  return arena.used();
}

}  // namespace
}  // namespace regard
