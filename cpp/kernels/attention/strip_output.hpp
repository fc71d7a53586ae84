// A strip's output: gathered block by block, merged chunk by chunk, and written to the arrays.
#pragma once

#include "dropout.hpp"
#include "key_block.hpp"
#include "../micro_kernel.hpp"
#include "online_softmax.hpp"
#include "strip_setup.hpp"

namespace regard {
namespace {

// Merges a strip's chunk with those before it and begins the next.
template <class T>
REGARD_NOINLINE void merge_chunk(Strip<T>& strip, std::int64_t padded_value_dim) {
  const int lanes = strip.vectors * kLanes<T>;
  for (int lane = 0; lane < lanes; lane += kLanes<T>) {
    const Shares<T> shares = merge_lanes(strip.total, strip.state, lane);
    for (std::int64_t row = 0; row < padded_value_dim; ++row) {
      T* to = strip.total_output + row * lanes + lane;
      const Vec<T> part = load(strip.output + row * lanes + lane) * shares.part;
      store(to, strip.total_is_fresh ? part : load<T>(to) * shares.total + part);
    }
  }
  strip.total_is_fresh = false;
  start_state(strip.state, lanes);
  strip.is_fresh = true;
}

template <class Shape>
struct StripOutput {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;

  // Keys whose tiles are computed, and the vectors of the strip that see some of them.
  struct Run {
    int begin;
    int end;
    VectorRange vectors;
  };

  // output += weights value, the block's sum first and then one addition: two levels of summation
  // keep the error near that of a blocked matrix product, however many keys there are.
  template <int kVectors, bool kSelect>
  REGARD_NOINLINE void add_values(Strip<T>& strip, const KeyBlock<T>& block, const Run* runs,
                                  int run_count, const T* all_weights,
                                  std::int64_t padded_value_dim) {
    constexpr int kWidth = kVectors * kLanes<T>;
    for (std::int64_t d = 0; d < padded_value_dim; d += kRows) {
      Accumulators<T, kRows, kVectors> acc;
      clear<T, kRows, kVectors>(acc);
      const T* weights = all_weights;
      for (int i = 0; i < run_count; ++i) {
        const int keys = runs[i].end - runs[i].begin;
        for_range<kVectors>(runs[i].vectors, [&](auto begin, auto end) {
          multiply_columns<T, kRows, kVectors, kSelect, begin.value, end.value>(
              acc, block.values + runs[i].begin * block.value_stride + d, block.value_stride,
              weights, kWidth, keys);
        });
        weights += keys * kWidth;
      }
      T* output = strip.output + d * kWidth;
      if (strip.is_fresh) {
        store_tile<T, kRows, kVectors>(acc, output);
        continue;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          T* to = output + (r * kVectors + v) * kLanes<T>;
          store(to, load<T>(to) + acc[r][v]);
        }
    }
    strip.is_fresh = false;
  }

  // weight *= the scale of its value, but of hidden keys.
  template <int kVectors>
  REGARD_NOINLINE void scale_weights(const T* value_scales, const Run* runs, int run_count, T* weights) {
    for (int i = 0; i < run_count; ++i)
      for (int k = runs[i].begin; k < runs[i].end; ++k)
        for (int v = 0; v < kVectors; ++v, weights += kLanes<T>)
          store(weights, scaled_weight<T>(load<T>(weights), broadcast(value_scales[k])));
  }

  // Drops some of the weights of the block at `key`.
  template <int kVectors>
  REGARD_NOINLINE void drop_weights(const AttentionProblem& problem, const AttentionTask& task,
                                    const StripRows<T>& strip, std::int64_t key, const Run* runs, int run_count,
                                    T* weights) {
    DropoutRows<Shape> rows;
    find_dropout_rows(problem, task, strip, rows);
    for (int i = 0; i < run_count; ++i)
      for (int k = runs[i].begin; k < runs[i].end; k += kKeysOfCounter) {
        const int keys = runs[i].end - k;
        for (int v = 0; v < kVectors; ++v) {
          T* at = weights + v * kLanes<T>;
          dropout_factors<Shape>(problem, task, rows, key + k, v * kLanes<T>, [&](int r, Vec<T> factor) {
            if (r >= keys) return;
            T* weight = at + r * kVectors * kLanes<T>;
            store(weight, dropped_weight<T>(load<T>(weight), factor));
          });
        }
        weights += (keys < kKeysOfCounter ? keys : kKeysOfCounter) * kVectors * kLanes<T>;
      }
  }

  // Divides by the sums and writes output and lse.
  static void finish(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      Strip<T>& strip = work.strips[s];
      const int lanes = strip.vectors * kLanes<T>;
      const bool is_one_chunk = strip.total_is_fresh && !problem.sinks;
      if (merges_chunks<Shape>(problem) && !is_one_chunk) take_total(strip, round_up(problem.value_dim, kRows));
      if (strip.is_fresh) {
        for (std::int64_t i = 0; i < problem.value_dim * lanes; i += kLanes<T>)
          store(strip.output + i, Vec<T>{});
      }
      for (int lane = 0; lane < lanes; lane += kLanes<T>)
        store(strip.reciprocal + lane, reciprocal_of_sum<T>(load(strip.state.sum + lane)));
      with_result_element<T>(problem.output.element, [&](auto element) {
        using To = typename decltype(element)::Type;
        To* rows[Shape::kStripLanes];
        row_pointers(problem, problem.output, task.output, strip, 0, rows);
        // + 0 turns a product of -0.0 into 0, so that the sign of a hidden value cannot show.
        lanes_to_rows(strip.output, lanes, problem.value_dim, rows, strip.rows,
                      problem.output.column_stride, [&](Vec<T> value, int lane) {
                        return value * load(strip.reciprocal + lane) + Vec<T>{};
                      });
      });
      if (task.lse) {
        T* rows[Shape::kStripLanes];
        row_pointers(problem, problem.lse, task.lse, strip, 0, rows);
        for (int lane = 0; lane < strip.rows; ++lane)
          *rows[lane] = log_sum_exp(strip.state.reference[lane], strip.state.sum[lane]);
      }
    }
  }

 private:
  // The last chunk merged, everything is in the strip's own state.
  static void take_total(Strip<T>& strip, std::int64_t padded_value_dim) {
    if (!strip.is_fresh) merge_chunk(strip, padded_value_dim);
    strip.state = strip.total;
    strip.output = strip.total_output;
    strip.is_fresh = strip.total_is_fresh;
  }
};

}  // namespace
}  // namespace regard
