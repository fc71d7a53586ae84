// The working memory of one thread that decodes one kv head: a few rows of queries, one block's
// scores, and the running results.
#pragma once

#include "../for_rows.hpp"
#include "../strips/online_softmax.hpp"
#include "../strips/scattered.hpp"

namespace regard {
namespace {

// A decode computes in float32 only: few calls decode in float64, and the forward kernel returns
// the same bits.
using DecodeShape = Float32;
constexpr int kWidth = kLanes<float>;

constexpr int kDecodeRows = kFewRows;  // maximum; more rows fill half of a strip's lanes

// The lanes of a state: one row per lane, in whole vectors.
constexpr int kDecodeLanes = kDecodeRows > kWidth ? kDecodeRows : kWidth;

constexpr int kDecodeBlock = DecodeShape::kBlockKeys;
// Number of keys whose scores are computed together: whole vectors and whole tiles.
constexpr int kDecodeStep = kWidth > DecodeShape::kRows ? kWidth : DecodeShape::kRows;
constexpr int kDecodeSteps = kDecodeBlock / kDecodeStep;
static_assert(kDecodeBlock % kDecodeStep == 0, "blocks are whole steps");
static_assert(kDecodeStep % kWidth == 0, "steps are whole vectors");
static_assert(kDecodeSteps <= 32, "a step is a bit");

// Calls `body` with the first key of each step whose bit is set, as an index within the block.
template <class Body>
REGARD_INLINE void for_steps(std::uint32_t steps, Body body) {
  for (; steps != 0; steps &= steps - 1) body(__builtin_ctz(steps) * kDecodeStep);
}

// The steps that contain keys of [begin, end), one bit each.
REGARD_INLINE std::uint32_t steps_of(std::int64_t begin, std::int64_t end) {
  const std::int64_t first = begin / kDecodeStep, last = (end + kDecodeStep - 1) / kDecodeStep;
  return static_cast<std::uint32_t>((std::uint64_t{1} << last) - (std::uint64_t{1} << first));
}

// Calls body(begin, end) for each run of consecutive steps: their keys, as indices within the block.
template <class Body>
REGARD_INLINE void for_runs_of_steps(std::uint32_t steps, Body body) {
  while (steps != 0) {
    const int first = __builtin_ctz(steps);
    const std::uint64_t past = ~(std::uint64_t{steps} >> first);
    const int count = __builtin_ctzll(past);
    body(first * kDecodeStep, (first + count) * kDecodeStep);
    steps &= static_cast<std::uint32_t>(~std::uint64_t{0} << (first + count));
  }
}

// A strip of a few rows. Rows are in lanes only in members that say so.
struct DecodeWorkspace : StripRows<float> {
  std::int64_t padded_head_dim;
  std::int64_t padded_value_dim;
  // [padded_head_dim][rows of for_rows], with zeros beyond the last row, so that one address serves
  // all rows.
  float* queries;
  float* query;                     // [padded_head_dim]: one query
  float score_factor[kDecodeRows];  // of products with int8 rows
  // [padded_head_dim][vectors of keys of a tile]; null if keys are never transposed into memory.
  float* transposed;
  float* scores;  // [kDecodeRows][block keys], later weights
  GatheredKeys gathered;
  float* gathered_scores;     // [kDecodeRows][block keys]
  float* bias;                // [kDecodeRows][block keys]: added to scores; -inf hides
  bool has_bias;              // whether the current block has a bias
  bool hides;                 // bias contains -inf for a key that is within some row's reach
  std::int64_t chunk;         // index of the current chunk
  SoftmaxState<float> state;  // of the current chunk, one lane per row
  float* output;              // [kDecodeRows][padded_value_dim], relative to the reference
  bool is_fresh;              // no block has written to output yet
  SoftmaxState<float> total;  // of the earlier chunks, merged
  float* total_output;
  bool total_is_fresh;
  float* keys;    // [block keys][padded_head_dim]: copy of a block that cannot be read in place
  float* values;  // [block keys][padded_value_dim]
  // [block keys], for rows with scales; null otherwise
  float* key_scales;
  float* value_scales;
  // [groups][scale, minimum][block keys], for q4_1 rows; null otherwise
  float* key_groups;
  float* value_groups;
  float* group_weights;  // weights times group scales, [rows][groups][block keys]; null otherwise
  float* group_sums;     // sums of weights times group minimums, [rows][groups]; null otherwise
  // For q4_1: the queries' integers, two per lane (nibble_scores.hpp), their sums by group, and
  // their steps. [head_dim / 2][rows of for_rows], [groups][rows of for_rows], [kDecodeRows]
  std::int32_t* query_pairs;
  float* query_sums;
  float* query_steps;
};

REGARD_NOINLINE std::int64_t lay_out_decode(const AttentionProblem& problem, void* memory) {
  Arena arena(memory);
  auto* const place = arena.take<DecodeWorkspace>(1);
  DecodeWorkspace work{};
  work.padded_head_dim = round_up(problem.head_dim, kWidth);
  work.padded_value_dim = round_up(problem.value_dim, kWidth);
  take_rows(problem, kDecodeLanes, arena, work);
  work.queries = arena.take<float>(kDecodeRows * work.padded_head_dim);
  work.query = arena.take<float>(work.padded_head_dim);
  work.scores = arena.take<float>(kDecodeRows * kDecodeBlock);
  work.gathered = take_gathered<DecodeShape>(problem, arena);
  if (gathers(problem)) work.gathered_scores = arena.take<float>(kDecodeRows * kDecodeBlock);
  work.bias = arena.take<float>(kDecodeRows * kDecodeBlock);
  work.state = take_state<float>(kDecodeLanes, arena);
  work.output = arena.take<float>(kDecodeRows * work.padded_value_dim);
  work.total = take_state<float>(kDecodeLanes, arena);
  work.total_output = arena.take<float>(kDecodeRows * work.padded_value_dim);
  work.keys = arena.take<float>(kDecodeBlock * work.padded_head_dim);
  work.values = arena.take<float>(kDecodeBlock * work.padded_value_dim);
  // scores.hpp uses this memory with 16 registers, and for 16-bit rows that do not fill squares of
  // two numbers per lane.
  const bool fills_squares = problem.head_dim % (2 * kWidth) == 0;
  if (DecodeShape::kRegisterCount == 16 || (bytes_of(problem.key.element) == 2 && !fills_squares))
    work.transposed = arena.take<float>(DecodeShape::kStripLanes * work.padded_head_dim);
  if (has_row_scales(problem.key.element)) {
    work.key_scales = arena.take<float>(kDecodeBlock);
    work.value_scales = arena.take<float>(kDecodeBlock);
  }
  if (problem.key.element == Element::q4_1) {
    work.key_groups = arena.take<float>(2 * kDecodeBlock * (problem.head_dim / kGroupOfFourBits));
    work.value_groups =
        arena.take<float>(2 * kDecodeBlock * (problem.value_dim / kGroupOfFourBits));
    work.group_weights =
        arena.take<float>(kDecodeRows * kDecodeBlock * (problem.value_dim / kGroupOfFourBits));
    work.group_sums = arena.take<float>(kDecodeRows * (problem.value_dim / kGroupOfFourBits));
    work.query_pairs = arena.take<std::int32_t>(kDecodeRows * problem.head_dim / 2);
    work.query_sums = arena.take<float>(kDecodeRows * (problem.head_dim / kGroupOfFourBits));
    work.query_steps = arena.take<float>(kDecodeRows);
  }
  if (place) *place = work;
  return arena.used();
}

}  // namespace
}  // namespace regard
