// output = softmax(scale query key^T + mask) value, for the rows of one task.
//
//   for a block of keys at an absolute position       keys and values stream through L2
//     for a strip of queries                          queries and output of all strips stay in L2
//       for a tile of keys                            scores in registers -> weights in L1
//       output^T += values^T weights^T                a tile of value dimensions in registers
//
// Queries lie in SIMD lanes from beginning to end, so nothing is ever reduced across lanes. Only the
// queries are packed; keys and values are read where they lie, unless their strides forbid it.
//
// A row's bits depend on its query, its keys and the target: tiles and blocks begin at multiples of
// their size whatever the interval at hand, every sum runs over keys in order, first within a block
// and then over blocks, and what other lanes do never changes an operation on this one.
//
// The dispatch calls `begin`, then `advance` over consecutive intervals of whole blocks, so that it
// can stop a long task, then `finish`, and `write_weights` where the caller wants them.
#pragma once

#include "visibility.hpp"

namespace regard {
namespace {

template <class Shape>
struct AttentionForward {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;

  static std::int64_t workspace_bytes(const AttentionProblem& problem, std::int64_t task_rows) {
    return lay_out<Shape>(problem, task_rows, nullptr);
  }

  // Packs the queries and clears the results. Returns the first key that no row sees by position.
  static std::int64_t begin(const AttentionProblem& problem, const AttentionTask& task,
                            void* memory) {
    lay_out<Shape>(problem, task.row_end - task.row_begin, static_cast<char*>(memory));
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    const std::int64_t group = problem.heads / problem.kv_heads;
    const T scale_log2 = static_cast<T>(problem.scale * kLog2E);
    std::int64_t key_end = 0;
    for (int s = 0; s < work.strip_count; ++s) {
      Strip<T>& strip = work.strips[s];
      const int lanes = strip.vectors * kLanes<T>;
      strip.first_row = task.row_begin + s * Shape::kStripLanes;
      const T* rows[Shape::kStripLanes];
      std::int64_t query = strip.first_row / group, head = strip.first_row % group;
      for (int lane = 0; lane < strip.rows; ++lane) {
        strip.positions[lane] = query + task.query_offset;
        rows[lane] = static_cast<const T*>(task.query) + query * problem.query.row_stride +
                     head * problem.query.head_stride;
        if (++head == group) {
          head = 0;
          ++query;
        }
      }
      for (int lane = strip.rows; lane < lanes; ++lane)
        strip.positions[lane] = strip.positions[strip.rows - 1];
      rows_to_lanes(rows, strip.rows, problem.query.column_stride, problem.head_dim,
                    strip.queries, lanes,
                    [=](Vec<T> value) { return value * broadcast(scale_log2); });
      const std::int64_t padded_value_dim = round_up(problem.value_dim, kRows);
      for (std::int64_t i = 0; i < padded_value_dim * lanes; i += kLanes<T>)
        store(strip.output + i, Vec<T>{});
      for (int lane = 0; lane < lanes; ++lane) {
        strip.reference[lane] = T(0);
        strip.limit[lane] = -kInfinity<T>;
        strip.sum[lane] = T(-0.0);
      }
      strip.full_end = interval_end(problem, strip.positions[0]);
      strip.key_end = interval_end(problem, strip.positions[strip.rows - 1]);
      if (strip.key_end > key_end) key_end = strip.key_end;
    }
    return key_end;
  }

  // Adds the keys of [key_begin, key_end); key_begin is a multiple of kBlockKeys.
  static void advance(const AttentionProblem& problem, const AttentionTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += Shape::kBlockKeys) {
      const KeyBlock<T> block = block_at(problem, task, key, true, work);
      int finite = -1;
      for (int s = 0; s < work.strip_count; ++s) {
        const Strip<T>& strip = work.strips[s];
        if (strip.key_end <= key) continue;
        for_vectors(strip.vectors, [&](auto vectors) {
          block_of_strip<vectors.kCount>(problem, task, strip, block, work, finite);
        });
      }
    }
  }

  // Divides by the sums and writes output and lse.
  static void finish(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      const Strip<T>& strip = work.strips[s];
      const int lanes = strip.vectors * kLanes<T>;
      T* rows[Shape::kStripLanes];
      row_pointers(problem, problem.output, task.output, strip, 0, rows);
      // + 0 turns a product of -0.0 into 0, so that the sign of a hidden value cannot show.
      lanes_to_rows(strip.output, lanes, problem.value_dim, rows, strip.rows,
                    problem.output.column_stride, [&](Vec<T> value, int lane) {
                      return value * reciprocal_of_sum<T>(load(strip.sum + lane)) + Vec<T>{};
                    });
      if (task.lse) {
        row_pointers(problem, problem.lse, task.lse, strip, 0, rows);
        for (int lane = 0; lane < strip.rows; ++lane)
          *rows[lane] = log_sum_exp(strip.reference[lane], strip.sum[lane]);
      }
    }
  }

  // Computes the scores again, now relative to the final references, and writes their weights for
  // the keys of [key_begin, key_end), hidden ones as 0.
  static void write_weights(const AttentionProblem& problem, const AttentionTask& task,
                            std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += Shape::kBlockKeys) {
      const KeyBlock<T> block = block_at(problem, task, key, false, work);
      for (int s = 0; s < work.strip_count; ++s) {
        const Strip<T>& strip = work.strips[s];
        for_vectors(strip.vectors, [&](auto vectors) {
          final_weights<vectors.kCount>(problem, task, strip, block, work);
        });
        T* rows[Shape::kStripLanes];
        row_pointers(problem, problem.weights, task.weights, strip, key, rows);
        lanes_to_rows(work.weights, strip.vectors * kLanes<T>, block.count, rows, strip.rows,
                      problem.weights.column_stride, [](Vec<T> value, int) { return value; });
      }
    }
  }

 private:
  template <int kVectors>
  struct Vectors {
    static constexpr int kCount = kVectors;
  };

  // Calls `body` with the number of vectors as a constant.
  template <int kCandidate = Shape::kVectors, class Body>
  REGARD_INLINE void for_vectors(int vectors, Body body) {
    if constexpr (kCandidate > 1) {
      if (vectors < kCandidate) return for_vectors<kCandidate - 1>(vectors, body);
    }
    body(Vectors<kCandidate>{});
  }

  static std::int64_t interval_end(const AttentionProblem& problem, std::int64_t position) {
    if (!problem.is_causal || position >= problem.kv_len) return problem.kv_len;
    return position < 0 ? 0 : position + 1;
  }

  static void row_pointers(const AttentionProblem& problem, const Operand& operand, void* data,
                           const Strip<T>& strip, std::int64_t column, T** rows) {
    const std::int64_t group = problem.heads / problem.kv_heads;
    std::int64_t query = strip.first_row / group, head = strip.first_row % group;
    for (int lane = 0; lane < strip.rows; ++lane) {
      rows[lane] = static_cast<T*>(data) + query * operand.row_stride +
                   head * operand.head_stride + column * operand.column_stride;
      if (++head == group) {
        head = 0;
        ++query;
      }
    }
  }

  // Rows further apart than this are copied: a tile of them would crowd into a few sets of L1 and
  // need a page each.
  static bool too_far_apart(std::int64_t row_stride) {
    const std::int64_t bytes = (row_stride < 0 ? -row_stride : row_stride) *
                               static_cast<std::int64_t>(sizeof(T));
    return bytes >= 2048;
  }

  static KeyBlock<T> block_at(const AttentionProblem& problem, const AttentionTask& task,
                              std::int64_t begin, bool wants_values, const Workspace<T>& work) {
    KeyBlock<T> block{};
    const std::int64_t left = problem.kv_len - begin;
    block.begin = begin;
    block.count = static_cast<int>(left < Shape::kBlockKeys ? left : Shape::kBlockKeys);
    const std::int64_t whole_tiles = block.count / kRows * kRows;

    const Operand& key = problem.key;
    const T* keys = static_cast<const T*>(task.key) + begin * key.row_stride;
    if (key.column_stride != 1 || too_far_apart(key.row_stride)) {
      copy_padded(keys, key.row_stride, key.column_stride, block.count, problem.head_dim,
                  work.keys, round_up(block.count, kRows), problem.head_dim);
      block.keys = work.keys;
      block.key_stride = problem.head_dim;
      block.tail_keys = work.keys + whole_tiles * problem.head_dim;
    } else {
      block.keys = keys;
      block.key_stride = key.row_stride;
      block.tail_keys = work.tail_keys;
      if (whole_tiles < block.count)
        copy_padded(keys + whole_tiles * key.row_stride, key.row_stride, key.column_stride,
                    block.count - whole_tiles, problem.head_dim, work.tail_keys, kRows,
                    problem.head_dim);
    }
    if (!wants_values) return block;

    const Operand& value = problem.value;
    const T* values = static_cast<const T*>(task.value) + begin * value.row_stride;
    const std::int64_t padded_value_dim = round_up(problem.value_dim, kRows);
    if (value.column_stride != 1 || padded_value_dim != problem.value_dim ||
        too_far_apart(value.row_stride)) {
      copy_padded(values, value.row_stride, value.column_stride, block.count, problem.value_dim,
                  work.values, block.count, padded_value_dim);
      block.values = work.values;
      block.value_stride = padded_value_dim;
    } else {
      block.values = values;
      block.value_stride = value.row_stride;
    }
    return block;
  }

  REGARD_NOINLINE bool values_are_finite(const KeyBlock<T>& block, std::int64_t value_dim) {
    for (int k = 0; k < block.count; ++k) {
      const T* value = block.values + k * block.value_stride;
      bool finite = true;
      for (std::int64_t d = 0; d < value_dim; ++d) finite &= value[d] - value[d] == T(0);
      if (!finite) return false;
    }
    return true;
  }

  // Both products of one strip and one block. `finite` is -1 until somebody needs to know whether
  // the block's values are.
  template <int kVectors>
  REGARD_NOINLINE void block_of_strip(const AttentionProblem& problem, const AttentionTask& task,
                                      const Strip<T>& strip, const KeyBlock<T>& block,
                                      const Workspace<T>& work, int& finite) {
    constexpr int kWidth = kVectors * kLanes<T>;
    const std::int64_t padded_value_dim = round_up(problem.value_dim, kRows);
    const std::int64_t reach = strip.key_end - block.begin;
    const int count = reach < block.count ? static_cast<int>(reach) : block.count;
    const bool has_float_mask =
        problem.mask_kind != MaskKind::none && problem.mask_kind != MaskKind::boolean;
    if (has_float_mask) load_float_mask<kVectors>(problem, task, strip, block, count, work.bias);

#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store(strip.block_sum + v * kLanes<T>, broadcast(T(-0.0)));

    bool hides_something = false;
    for (int k = 0; k < count; k += kRows) {
      T* bias = work.bias + k * kWidth;
      const bool is_tail = block.count - k < kRows;
      const T* keys = is_tail ? block.tail_keys : block.keys + k * block.key_stride;
      const std::ptrdiff_t stride = is_tail ? problem.head_dim : block.key_stride;
      switch (tile_kind<T, kRows, kVectors>(problem, task, strip, block, k, bias)) {
        case TileKind::visible:
          weights_tile<T, kRows, kVectors, false>(keys, stride, bias, strip, work.weights, k,
                                                  problem.head_dim, padded_value_dim);
          break;
        case TileKind::biased:
          weights_tile<T, kRows, kVectors, true>(keys, stride, bias, strip, work.weights, k,
                                                 problem.head_dim, padded_value_dim);
          hides_something = true;
          break;
        case TileKind::hidden:
          for (int i = 0; i < kRows * kVectors; ++i)
            store(work.weights + k * kWidth + i * kLanes<T>, broadcast(T(-0.0)));
          hides_something = true;
          break;
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      T* sum = strip.sum + v * kLanes<T>;
      store(sum, load<T>(sum) + load<T>(strip.block_sum + v * kLanes<T>));
    }

    // A hidden key's weight of -0.0 times a finite value changes no sum; times NaN or inf it would.
    if (hides_something && finite < 0) finite = values_are_finite(block, problem.value_dim);
    if (hides_something && !finite)
      add_values<kVectors, true>(strip, block, count, padded_value_dim, work.weights);
    else
      add_values<kVectors, false>(strip, block, count, padded_value_dim, work.weights);
  }

  // output += weights value, the block's sum first and then one addition: two levels of summation
  // keep the error near that of a blocked matrix product, however many keys there are.
  template <int kVectors, bool kSelect>
  REGARD_NOINLINE void add_values(const Strip<T>& strip, const KeyBlock<T>& block, int count,
                                  std::int64_t padded_value_dim, const T* weights) {
    constexpr int kWidth = kVectors * kLanes<T>;
    for (std::int64_t d = 0; d < padded_value_dim; d += kRows) {
      Accumulators<T, kRows, kVectors> acc;
      clear<T, kRows, kVectors>(acc);
      multiply_columns<T, kRows, kVectors, kSelect>(acc, block.values + d, block.value_stride,
                                                    weights, kWidth, count);
      T* output = strip.output + d * kWidth;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          T* to = output + (r * kVectors + v) * kLanes<T>;
          store(to, load<T>(to) + acc[r][v]);
        }
    }
  }

  // As far as the last tile that `count` keys reach into.
  template <int kVectors>
  REGARD_INLINE void load_float_mask(const AttentionProblem& problem, const AttentionTask& task,
                                     const Strip<T>& strip, const KeyBlock<T>& block, int count,
                                     T* bias) {
    count = round_up(count, kRows) < block.count ? static_cast<int>(round_up(count, kRows))
                                                 : block.count;
    if (problem.mask_kind == MaskKind::float32)
      float_mask_bias<T, float, kVectors>(problem, task, strip, block.begin, count, bias);
    else
      float_mask_bias<T, double, kVectors>(problem, task, strip, block.begin, count, bias);
  }

  template <int kVectors, bool kHasBias>
  REGARD_INLINE void final_tile(const T* keys, std::ptrdiff_t key_stride, const T* bias,
                                const Strip<T>& strip, std::int64_t head_dim, T* tile) {
    Accumulators<T, kRows, kVectors> acc;
    score_tile<T, kRows, kVectors, kHasBias>(acc, keys, key_stride, bias, strip, head_dim);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> reference = load(strip.reference + v * kLanes<T>);
      const Vec<T> reciprocal = reciprocal_of_sum<T>(load(strip.sum + v * kLanes<T>));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec<T> weight =
            weight_of<T, kVectors, kHasBias>(acc[r][v], reference, bias, r, v);
        Vec<T> share = weight * reciprocal;
        if constexpr (kHasBias) {
          // Selected once more, since reciprocal may be NaN.
          const Vec<T> added = load(bias + (r * kVectors + v) * kLanes<T>);
          share = select<T>(added == broadcast(-kInfinity<T>), Vec<T>{}, share);
        }
        store(tile + (r * kVectors + v) * kLanes<T>, share);
      }
    }
  }

  // The block's weights of one strip, divided by the sums, in work.weights.
  template <int kVectors>
  REGARD_NOINLINE void final_weights(const AttentionProblem& problem, const AttentionTask& task,
                                     const Strip<T>& strip, const KeyBlock<T>& block,
                                     const Workspace<T>& work) {
    constexpr int kWidth = kVectors * kLanes<T>;
    const std::int64_t reach = strip.key_end - block.begin;
    const int count = reach < 0 ? 0 : reach < block.count ? static_cast<int>(reach) : block.count;
    if (problem.mask_kind == MaskKind::float32 || problem.mask_kind == MaskKind::float64)
      load_float_mask<kVectors>(problem, task, strip, block, count, work.bias);

    int k = 0;
    for (; k < count; k += kRows) {
      T* bias = work.bias + k * kWidth;
      T* tile = work.weights + k * kWidth;
      const bool is_tail = block.count - k < kRows;
      const T* keys = is_tail ? block.tail_keys : block.keys + k * block.key_stride;
      const std::ptrdiff_t stride = is_tail ? problem.head_dim : block.key_stride;
      switch (tile_kind<T, kRows, kVectors>(problem, task, strip, block, k, bias)) {
        case TileKind::visible:
          final_tile<kVectors, false>(keys, stride, bias, strip, problem.head_dim, tile);
          break;
        case TileKind::biased:
          final_tile<kVectors, true>(keys, stride, bias, strip, problem.head_dim, tile);
          break;
        case TileKind::hidden:
          for (int i = 0; i < kRows * kVectors; ++i)
            store(tile + i * kLanes<T>, Vec<T>{});
          break;
      }
    }
    for (; k < block.count; ++k)
      for (int v = 0; v < kVectors; ++v)
        store(work.weights + k * kWidth + v * kLanes<T>, Vec<T>{});
  }
};

}  // namespace
}  // namespace regard
