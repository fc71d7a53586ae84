// scores = query key for the rows of a decode: keys are read in place (any element type, any row
// stride, in pages), or copied if their columns are not contiguous or do not fill vectors.
#pragma once

#include "narrow_scores.hpp"
#include "nibble_scores.hpp"
#include "register_scores.hpp"
#include "rows_in_lanes.hpp"
#include "transposed_scores.hpp"
#include "weights.hpp"
#include "../strips/lanes.hpp"

namespace regard {
namespace {

// Integers that are read in place are multiplied by kByteOnTop, and queries are divided by it to
// compensate. Returns a factor for the products if queries are so small that they would become
// subnormal, and 1 otherwise.
REGARD_NOINLINE float undo_byte_on_top(float* query, std::int64_t head_dim) {
  constexpr float kSmall = 0x1p-64f, kFactor = 1 / kByteOnTop;
  bool is_small = true;
  for (std::int64_t i = 0; i < head_dim; ++i) is_small &= query[i] < kSmall && query[i] > -kSmall;
  if (is_small) return kFactor;
  for (std::int64_t i = 0; i < head_dim; ++i) query[i] *= kFactor;
  return 1.0f;
}

REGARD_NOINLINE void pack_decode_queries(const AttentionProblem& problem, const AttentionTask& task,
                                         DecodeWorkspace& work) {
  const bool rotates = rotates_queries(problem);
  const float share = rotates ? query_share(problem.key.element, problem.head_dim) : 1.0f;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const int together = for_rows(work.rows, [](auto rows) { return decltype(rows)::value; });
  for (std::int64_t i = 0; i < together * work.padded_head_dim; ++i) work.queries[i] = 0.0f;
  for (int row = 0; row < work.rows; ++row) {
    float* to = work.query;
    const std::int64_t first = (task.row_begin + row) / group * problem.query.row_stride +
                               (task.row_begin + row) % group * problem.query.head_stride;
    with_input_element<float>(problem.query.element, [&](auto element) {
      using From = typename decltype(element)::Type;
      const From* from = static_cast<const From*>(task.query) + first;
      for (std::int64_t i = 0; i < problem.head_dim; ++i)
        to[i] = widen(from[i * problem.query.column_stride]) * share;
    });
    if (task.key_means)
      work.mean_scores[row] = score_of_mean<float>(
          task.key_means, problem.head_dim, broadcast(work.scales[row] / share),
          [&](std::int64_t d) { return broadcast(to[d]); })[0];
    if (rotates) rotate_row(to, problem.head_dim);
    const bool undoes = problem.key.element == Element::int8 && decodes_keys_in_place(problem);
    work.score_factor[row] = undoes ? undo_byte_on_top(to, problem.head_dim) : 1.0f;
    if (problem.key.element == Element::q4_1)
      round_decode_query(to, problem.head_dim, row, together, work);
    for (std::int64_t i = 0; i < problem.head_dim; ++i) work.queries[i * together + row] = to[i];
  }
}

// Whether keys are multiplied from the registers in which they are transposed. This requires one
// register for each row in addition to the registers of a square. With 16 registers and more than
// two rows, some values would be spilled to the stack, which costs more than memory accesses.
// Squares of int8 hold four times as many keys, so it pays for up to eight rows.
template <int kRows, class From>
constexpr bool kMultipliesFromRegisters =
    DecodeShape::kRegisterCount == 32 || kRows <= 2 || (sizeof(From) == 1 && kRows < kDecodeRows);

REGARD_NOINLINE void score_steps(const DecodeBlock& block, const DecodeWorkspace& work,
                                 Ahead& ahead) {
  const std::uint32_t steps = block.steps;
  for_rows(work.rows, [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    const auto score_numbers = [&](auto element) {
      using From = typename decltype(element)::Type;
      if constexpr (kMultipliesFromRegisters<kRows, From>) {
        if constexpr (sizeof(From) == sizeof(float)) {
          return score_register_steps<kRows>(block, steps, work, ahead);
        } else {
          // Always true for bytes: other rows are copied, and the code below is not compiled for
          // bytes.
          if (work.padded_head_dim % (kLaneParts<From> * kWidth) == 0)
            return score_narrow_steps<kRows, From>(block, steps, work, ahead);
        }
      }
      if constexpr (kPutsRowsInLanes<kRows, From>)
        score_steps_by_rows<kRows>(block, steps, work, ahead);
      else if constexpr (sizeof(From) > 1 || !kMultipliesFromRegisters<kRows, From>)
        score_transposed_steps<kRows, From>(block, steps, work, ahead);
    };
    const auto score = [&](auto element) {
      if constexpr (!kIsNibbles<typename decltype(element)::Type>)
        score_numbers(element);
      else
        score_nibble_steps<kRows>(block, steps, work, ahead);
    };
    with_block_element(block.keys.element, score);
  });
}

}  // namespace
}  // namespace regard
