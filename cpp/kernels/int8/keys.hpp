// The int8 keys of one kv head, shared by all strips and tasks:
//
//   rotated(key[j] - mean) = scale[j] * row[j]  |row| <= 127, scale[j] = largest magnitude / 127
//
// The mean is common to all keys, and shifts all scores of a query by the same amount. Without it,
// the steps of int8 are available for the differences between keys (Zhang et al. 2024,
// SageAttention). The product of query and mean is added back to each score in float (scores.hpp),
// so that only rounding is lost. Keys are divided by the group size before they are rotated, so
// that no sum overflows (../hadamard.hpp).
//
//   NaN, inf  in a key make its scale NaN, and therefore its scores
//   tiny      a largest magnitude below kSmallest counts as 0, because 127 / it would overflow
//   mean      the sum of the finite elements of the keys that exist, in double and in order,
//             divided by the number of these keys; a mean beyond kLargestMean is not subtracted, so
//             that no difference overflows
#pragma once

#include "../groups_of_four_bits.hpp"
#include "../hadamard.hpp"
#include "../kernel_table.hpp"
#include "../strips/arena.hpp"
#include "../strips/tile_rows.hpp"
#include "../mask_value.hpp"
#include "../pack.hpp"

namespace regard {
namespace {

constexpr float kSmallest = 0x1p-120f;
constexpr double kLargestMean = 0x1p100;

// x = H x / group in each group of rows of [head_dim][stride], for a vector of lanes. A product of
// two such rows is 1 / group of the original product.
REGARD_NOINLINE void rotate_shares(float* x, std::int64_t stride, std::int64_t head_dim) {
  const Vec<float> share = broadcast(1.0f / static_cast<float>(rotated_together(head_dim)));
  for (std::int64_t d = 0; d < head_dim; ++d)
    store(x + d * stride, load<float>(x + d * stride) * share);
  rotate_lanes<float>(x, stride, head_dim);
}

// The rounding parameters for numbers with one largest magnitude per lane.
struct Int8Steps {
  Vec<float> step;     // NaN if a number is NaN or infinite
  Vec<float> inverse;  // 0 in this case, and if all numbers count as 0
};

REGARD_INLINE Int8Steps steps_of(const float* x, std::int64_t stride, std::int64_t head_dim) {
  Mask<float> largest{};  // bits are in the order of magnitudes, then infinity, then NaN
  for (std::int64_t d = 0; d < head_dim; ++d) {
    const Mask<float> bits = as_bits<float>(load<float>(x + d * stride)) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const Vec<float> numbers = as_value<float>(largest);
  const Mask<float> counts =
      (numbers >= broadcast(kSmallest)) & (numbers <= broadcast(kLargest<float>));
  const Vec<float> step =
      select<float>(numbers < broadcast(kSmallest), Vec<float>{}, numbers / broadcast(kInt8Steps));
  return {step + (step - step),  // inf - inf is NaN
          select<float>(counts, broadcast(kInt8Steps) / numbers, Vec<float>{})};
}

// One byte per lane.
typedef std::int8_t Int8Lanes __attribute__((vector_size(kVectorBytes / 4), aligned(1), may_alias));

struct Int8KeysMemory : Int8Keys {
  double* sums;  // [padded head_dim]
  float* block;  // [lanes][padded head_dim]: keys as float32
  float* lanes;  // [head_dim][lanes]: the same, transposed
  std::int64_t padded_dim;
  std::int64_t padded_keys;
};

template <class Shape>
struct QuantizedKeys {
  static constexpr int kWidth = kLanes<float>;

  static constexpr Int8Quantizer quantizer() { return {bytes, begin, add_to_mean, quantize}; }

  static std::int64_t bytes(const AttentionProblem& problem, std::int64_t kv_len) {
    return lay_out_keys(problem, kv_len, nullptr);
  }

  // Intervals start at 0 and end at multiples of kBlockKeys or at the last key.
  static void begin(const AttentionProblem& problem, std::int64_t kv_len, void* memory) {
    lay_out_keys(problem, kv_len, memory);
    const Int8KeysMemory& head = *static_cast<const Int8KeysMemory*>(memory);
    for (std::int64_t d = 0; d < head.padded_dim; ++d) {
      head.sums[d] = 0;
      head.mean[d] = 0;
    }
    std::int8_t* end = head.rows + kv_len * head.row_bytes;
    for (std::int64_t i = 0; i < (head.padded_keys - kv_len) * head.row_bytes; ++i) end[i] = 0;
    for (std::int64_t key = kv_len; key < head.padded_keys; ++key) {
      head.scales[key] = 0;
      head.corrections[key] = 0;
    }
  }

  static void add_to_mean(const AttentionProblem& problem, const AttentionTask& task,
                          std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Int8KeysMemory& head = *static_cast<const Int8KeysMemory*>(memory);
    for (std::int64_t key = first_block(task, key_begin); key < key_end; key += kWidth) {
      const std::int64_t count = read_rows(problem, task, key, key_end, head);
      const std::int64_t first = clamp(task.key_begin - key, 0, count);
      for (std::int64_t d = 0; d < head.padded_dim; d += kWidth) {
        double sums[kWidth];
        for (int i = 0; i < kWidth; ++i) sums[i] = head.sums[d + i];
        for (std::int64_t row = first; row < count; ++row) {
          const float* from = head.block + row * head.padded_dim + d;
          for (int i = 0; i < kWidth; ++i) sums[i] += from[i] - from[i] == 0 ? from[i] : 0.0f;
        }
        for (int i = 0; i < kWidth; ++i) head.sums[d + i] = sums[i];
      }
    }
    if (key_end != task.kv_len) return;
    const std::int64_t evicted = task.evicted_pages * problem.page_rows;  // read as zeros
    const double count = static_cast<double>(task.kv_len - task.key_begin - evicted);
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      const double mean = head.sums[d] / count;
      head.mean[d] =
          mean <= kLargestMean && mean >= -kLargestMean ? static_cast<float>(mean) : 0.0f;
    }
  }

  static void quantize(const AttentionProblem& problem, const AttentionTask& task,
                       std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Int8KeysMemory& head = *static_cast<const Int8KeysMemory*>(memory);
    const Vec<float> round = broadcast(kRoundsToInteger<float>);
    for (std::int64_t key = first_block(task, key_begin); key < key_end; key += kWidth) {
      const int count = static_cast<int>(read_rows(problem, task, key, key_end, head));
      float* rows[kWidth];
      for (int row = 0; row < kWidth; ++row) rows[row] = head.block + row * head.padded_dim;
      rows_to_lanes<float>(rows, count, 1, problem.head_dim, head.lanes, kWidth, Identity{});
      for (std::int64_t d = 0; d < problem.head_dim; ++d)
        store(head.lanes + d * kWidth,
              load<float>(head.lanes + d * kWidth) - broadcast(head.mean[d]));
      rotate_shares(head.lanes, kWidth, problem.head_dim);
      const Int8Steps steps = steps_of(head.lanes, kWidth, problem.head_dim);
      const Mask<float> is_finite = steps.step == steps.step;
      Vec<float> sum{};  // exact, because it sums integers
      for (std::int64_t d = 0; d < problem.head_dim; ++d) {
        float* at = head.lanes + d * kWidth;
        const Vec<float> integer =
            select<float>(is_finite, load<float>(at) * steps.inverse + round - round, Vec<float>{});
        sum = sum + integer;
        store(at, integer);
      }
      float scales[kWidth], sums[kWidth];
      store(scales, steps.step);
      store(sums, sum);
      lanes_to_rows<float>(head.lanes, kWidth, problem.head_dim, rows, count, 1,
                           [](Vec<float> value, int) { return value; });
      for (int row = 0; row < count; ++row) {
        std::int8_t* to = head.rows + (key + row) * head.row_bytes;
        for (std::int64_t d = 0; d < head.padded_dim; d += kWidth)
          *reinterpret_cast<Int8Lanes*>(to + d) = __builtin_convertvector(
              __builtin_convertvector(load<float>(rows[row] + d), Mask<float>), Int8Lanes);
        head.scales[key + row] = scales[row];
        head.corrections[key + row] = -128 * static_cast<std::int32_t>(sums[row]);
      }
    }
  }

 private:
  static std::int64_t lay_out_keys(const AttentionProblem& problem, std::int64_t kv_len,
                                   void* memory) {
    Arena arena(memory);
    auto* const place = arena.take<Int8KeysMemory>(1);
    Int8KeysMemory head{};
    head.padded_dim = round_up(problem.head_dim, kWidth);
    head.padded_keys = round_up(kv_len, Shape::kRows);
    head.row_bytes = round_up(problem.head_dim, 4);
    // Rows are written in whole vectors. Each row overwrites the padding that the previous row left
    // after its end.
    head.rows = arena.take<std::int8_t>(head.padded_keys * head.row_bytes + kWidth);
    head.scales = arena.take<float>(head.padded_keys);
    head.corrections = arena.take<std::int32_t>(head.padded_keys);
    head.mean = arena.take<float>(head.padded_dim);
    head.sums = arena.take<double>(head.padded_dim);
    head.block = arena.take<float>(kWidth * head.padded_dim);
    head.lanes = arena.take<float>(kWidth * problem.head_dim);
    if (place) *place = head;
    return arena.used();
  }

  // Blocks of keys that do not exist are never read.
  REGARD_INLINE std::int64_t first_block(const AttentionTask& task, std::int64_t key) {
    const std::int64_t first = task.key_begin / Shape::kBlockKeys * Shape::kBlockKeys;
    return key > first ? key : first;
  }

  // Reads up to kWidth keys starting at `key`, as float32. Returns their number.
  REGARD_INLINE std::int64_t read_rows(const AttentionProblem& problem, const AttentionTask& task,
                                       std::int64_t key, std::int64_t end,
                                       const Int8KeysMemory& head) {
    const std::int64_t count = end - key < kWidth ? end - key : kWidth;
    copy_rows<float>(keys_of(problem, task), key, count, problem.head_dim, head.block, count,
                     head.padded_dim);
    return count;
  }
};

}  // namespace
}  // namespace regard
