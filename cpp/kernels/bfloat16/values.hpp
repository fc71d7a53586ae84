// output += weights value with both in bfloat16: pairs of keys, whose weights are rounded after
// they have been added to the rows' sums.
#pragma once

#include "scores.hpp"
#include "../strips/products.hpp"

namespace regard {
namespace {

template <class Shape, class Dot>
struct PairValues {
  using T = float;
  static constexpr int kRows = Shape::kRows;

  static bool copies_values(const AttentionProblem&) { return true; }

  // block.values: [key / 2][padded value_dim], a pair of keys each.
  REGARD_NOINLINE void provide(const AttentionProblem& problem, const AttentionTask& task,
                               const ForwardWorkspace<float>& work, ForwardBlock<float>& block) {
    if (block.values.from) return;
    const std::int64_t columns = round_up(problem.value_dim, kRows);
    const TileRows<float> wide =
        provide_rows<float, kRows>(values_of(problem, task), block.begin, block.count,
                                   problem.value_dim, columns, work.values);
    block.values_are_finite =
        rows_are_finite(wide.from, wide.stride, block.count, problem.value_dim);
    float* to = work.values.rows;
    for (int k = 0; k < block.count; k += 2, to += columns) {
      const float* const low = wide.from + k * wide.stride;
      const float* const high = k + 1 < block.count ? low + wide.stride : nullptr;
      std::int64_t d = 0;
      for (; d + kLanes<float> <= columns; d += kLanes<float>)
        store(to + d, pairs_of(load(low + d), high ? load(high + d) : Vec<float>{}));
      for (; d < columns; ++d)
        to[d] = pairs_of(broadcast(low[d]), broadcast(high ? high[d] : 0.0f))[0];
    }
    block.values.from = work.values.rows;
    block.values.stride = columns;
  }

  template <int kVectors>
  REGARD_INLINE void add(const AttentionProblem& problem, const ForwardWorkspace<float>& work,
                         const ForwardBlock<float>& block, const KeyRuns<Shape>& runs, bool selects,
                         ForwardStrip<float>& strip) {
    constexpr int kWidth = kVectors * kLanes<float>;
    // Weights to pairs, in place: [key / 2][lanes]. A run's last tile is whole.
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; k += 2)
        for (int lane = 0; lane < kWidth; lane += kLanes<float>) {
          const float* const from = work.weights + k * kWidth + lane;
          store(work.weights + k / 2 * kWidth + lane, pairs_of(load(from), load(from + kWidth)));
        }
    if (selects)
      add_pairs<kVectors, true>(problem, work, block, runs, strip);
    else
      add_pairs<kVectors, false>(problem, work, block, runs, strip);
  }

 private:
  template <int kVectors, bool kSelect>
  REGARD_NOINLINE void add_pairs(const AttentionProblem& problem,
                                 const ForwardWorkspace<float>& work,
                                 const ForwardBlock<float>& block, const KeyRuns<Shape>& runs,
                                 ForwardStrip<float>& strip) {
    constexpr int kWidth = kVectors * kLanes<float>;
    for (std::int64_t column = 0; column < problem.value_dim; column += kRows) {
      Accumulators<float, kRows, kVectors> acc;
      clear<float, kRows, kVectors>(acc);
      for (int i = 0; i < runs.count; ++i) {
        const KeyRun& run = runs.run[i];
        for_range<kVectors>(run.vectors, [&](auto begin, auto end) {
          for (int k = run.begin / 2; k < (run.end + 1) / 2; ++k)
            add_pair<kVectors, kSelect, begin.value, end.value>(
                acc, block.values.from + k * block.values.stride + column,
                work.weights + k * kWidth);
        });
      }
      float* const to = strip.outputs() + column * kWidth;
      if (strip.is_fresh)
        store_tile<float, kRows, kVectors>(acc, to);
      else
        add_tile<float, kRows, kVectors>(acc, to, kWidth);
    }
  }

  // Where kSelect, the product of a hidden key (its weight is -0.0) is left out, so that a NaN or
  // inf in it goes nowhere: each number of the pair is multiplied apart, in the same order.
  template <int kVectors, bool kSelect, int kFirst, int kEnd>
  REGARD_INLINE void add_pair(Accumulators<float, kRows, kVectors>& acc, const float* values,
                              const float* weights) {
    Vec<float> of_lanes[kVectors];
#pragma GCC unroll 8
    for (int v = kFirst; v < kEnd; ++v) of_lanes[v] = load(weights + v * kLanes<float>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec<float> value = broadcast_word(values + r);
#pragma GCC unroll 8
      for (int v = kFirst; v < kEnd; ++v) {
        const Vec<float> weight = of_lanes[v];
        if constexpr (!kSelect) {
          acc[r][v] = Dot::add(acc[r][v], weight, value);
        } else {
          const Mask<float> bits = as_bits<float>(weight);
          const Vec<float> high = Dot::add(acc[r][v], weight, high_of_pairs(value));
          acc[r][v] = select<float>((bits >> 16 & 0xffff) == 0x8000, acc[r][v], high);
          const Vec<float> low =
              Dot::add(acc[r][v], weight, as_value<float>(as_bits<float>(value) & 0xffff));
          acc[r][v] = select<float>((bits & 0xffff) == 0x8000, acc[r][v], low);
        }
      }
    }
  }

  REGARD_INLINE Vec<float> broadcast_word(const float* from) {
    std::int32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return as_value<float>(Mask<float>{} + word);
  }
};

}  // namespace
}  // namespace regard
