// Dropout of weights. Whether a weight is kept depends only on the seed and on the weight's
// position: for the key at j, on word j % 4 of Philox4x32-10 with the counter (j / 4, position of
// the query, head, batch entry). No mask is therefore stored, and no tile, thread or chunk affects
// the result. A problem that is part of a larger one counts all of these from `dropout_origin`.
#pragma once

#include "../../simd/philox.hpp"
#include "score_rule.hpp"
#include "tiles.hpp"

namespace regard {
namespace {

constexpr int kKeysOfCounter = 4;

// The contribution of each lane to its counters.
template <class Shape>
struct DropoutRows {
  using Word = LaneWord<sizeof(typename Shape::Element)>;
  Word positions[Shape::kStripLanes];
  Word heads[Shape::kStripLanes];
};

template <class Shape, class T>
REGARD_NOINLINE void find_dropout_rows(const AttentionProblem& problem, const AttentionTask& task,
                                       const StripRows<T>& strip, DropoutRows<Shape>& rows) {
  const DropoutOrigin& origin = problem.dropout_origin;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const auto first_head =
      static_cast<std::uint32_t>(origin.head) + static_cast<std::uint32_t>(task.first_head);
  // Modulo 2^32, so that no offset is too large. `strip.positions` are limited to 63 bits.
  const auto first_position =
      static_cast<std::uint32_t>(task.query_offset) + static_cast<std::uint32_t>(origin.position);
  for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
    const std::int64_t row = strip.first_row + lane;
    rows.positions[lane] = first_position + static_cast<std::uint32_t>(row / group);
    rows.heads[lane] = first_head + static_cast<std::uint32_t>(row % group);
  }
}

// Calls use(i, factor) for the keys key + i, i from 0 to 3. The factor is 0 if a lane drops its
// weight, and 1 / (1 - p) otherwise. `key` is a multiple of kKeysOfCounter, and `lane` is the first
// lane of a vector. The four keys have one counter, or two if the origin's position is not a
// multiple of kKeysOfCounter.
template <class Shape, class Use, class T = typename Shape::Element>
REGARD_INLINE void dropout_factors(const AttentionProblem& problem, const AttentionTask& task,
                                   const DropoutRows<Shape>& rows, std::int64_t key, int lane,
                                   Use use) {
  const std::uint32_t entry = static_cast<std::uint32_t>(problem.dropout_origin.entry) +
                              static_cast<std::uint32_t>(task.entry);
  const Mask<T> counter[3] = {as_bits<T>(load(reinterpret_cast<const T*>(rows.positions + lane))),
                              as_bits<T>(load(reinterpret_cast<const T*>(rows.heads + lane))),
                              Mask<T>{} + static_cast<std::int32_t>(entry)};
  const std::uint64_t seed = problem.dropout_seed;
  const auto position =
      static_cast<std::uint64_t>(problem.dropout_origin.position) + static_cast<std::uint64_t>(key);
  const int first_word = static_cast<int>(position % kKeysOfCounter);
  Mask<T> words[2 * kKeysOfCounter];
  for (int n = 0; n < (first_word == 0 ? 1 : 2); ++n)
    philox_of_lanes<T>(static_cast<std::uint32_t>(position / kKeysOfCounter + n), counter,
                       {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
                       words + n * kKeysOfCounter);
  const Vec<T> kept = broadcast(static_cast<T>(problem.dropout_factor));
#pragma GCC unroll 4
  for (int i = 0; i < kKeysOfCounter; ++i)
    use(i,
        select<T>(word_is_above<T>(words[first_word + i], problem.dropout_limit), kept, Vec<T>{}));
}

// Applies dropout to the weights of a block, [block keys][kStripLanes], and, if `others` is not
// null, to other numbers that belong to the weights.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void drop_weights(const AttentionProblem& problem, const AttentionTask& task,
                                  const StripRows<T>& strip, std::int64_t block_begin,
                                  const KeyRuns<Shape>& runs, T* weights, T* others = nullptr) {
  constexpr int kWidth = Shape::kStripLanes;
  DropoutRows<Shape> rows;
  find_dropout_rows(problem, task, strip, rows);
  for (int i = 0; i < runs.count; ++i)
    for (int k = runs.run[i].begin; k < runs.run[i].end; k += kKeysOfCounter)
      for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>)
        dropout_factors<Shape>(
            problem, task, rows, block_begin + k, lane, [&](int r, Vec<T> factor) {
              const int at = (k + r) * kWidth + lane;
              store(weights + at, dropped_weight<T>(load<T>(weights + at), factor));
              if (others) store(others + at, dropped_weight<T>(load<T>(others + at), factor));
            });
}

}  // namespace
}  // namespace regard
