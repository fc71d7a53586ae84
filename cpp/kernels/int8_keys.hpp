// The keys of one kv head in int8, for all strips and tasks to share.
//
//   key[j] = mean + scale[j] * row[j]      |row| <= 127, scale[j] = max |key[j] - mean| / 127
//
// The mean over the keys is what all of them have in common: it moves every score of a query alike, and
// taken away it leaves the steps of int8 to what tells keys apart (Zhang et al. 2024, SageAttention).
// Query . mean returns to each score in float (int8_queries.hpp), so that nothing is lost but rounding.
//
// Rows follow each other without gaps but up to whole dwords, zeros behind the last up to a whole tile.
//
//   NaN     in a key makes its scale NaN, and so its scores
//   inf     the scale is infinite and the row 127, -127 or 0 where the key is inf, -inf or finite
//   tiny    a key less the mean under kSmallest counts as 0: 127 / it would overflow
//   mean    of the finite elements, in double and in order; where it exceeds kLargestMean it stays in
//           the keys, so that no difference overflows
#pragma once

#include "../simd/transpose.hpp"
#include "key_block.hpp"

namespace regard {
namespace {

constexpr float kInt8Steps = 127;
constexpr float kSmallest = 0x1p-120f;
constexpr double kLargestMean = 0x1p100;
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the integer

// |x| as an integer: in the order of the magnitudes, infinity and then NaN above all.
REGARD_INLINE Mask<float> magnitude_bits(Vec<float> x) { return as_bits<float>(x) & 0x7fffffff; }

REGARD_INLINE Mask<float> larger(Mask<float> a, Mask<float> b) { return a > b ? a : b; }

// What multiplies numbers up to `largest` to make them int8. 0 where they count as 0, or are not
// finite.
REGARD_INLINE Vec<float> inverse_step(Mask<float> largest) {
  const Vec<float> numbers = as_value<float>(largest);
  const Mask<float> counts = numbers >= broadcast(kSmallest);
  return select<float>(counts, broadcast(kInt8Steps) / numbers, Vec<float>{});
}

// Its opposite: infinity and NaN stay themselves.
REGARD_INLINE Vec<float> step_of(Mask<float> largest) {
  const Vec<float> numbers = as_value<float>(largest);
  return select<float>(numbers < broadcast(kSmallest), Vec<float>{}, numbers / broadcast(kInt8Steps));
}

// A byte a lane.
typedef std::int8_t Int8Lanes __attribute__((vector_size(kVectorBytes / 4), aligned(1), may_alias));

struct Int8KeysMemory {
  Int8Keys keys;
  std::int8_t* rows;
  float* scales;
  std::int32_t* corrections;
  float* mean;   // [padded head_dim], zeros behind
  double* sums;  // [padded head_dim]
  float* block;  // [lanes][padded head_dim]: keys as float32
  std::int64_t padded_dim;
  std::int64_t padded_keys;
};

template <class Shape>
struct QuantisedKeys {
  static constexpr int kWidth = kLanes<float>;

  static std::int64_t bytes(const AttentionProblem& problem, std::int64_t kv_len) {
    return lay_out_keys(problem, kv_len, nullptr);
  }

  // Then `add_to_mean` and, when that has seen all keys, `quantise`, both over consecutive intervals
  // from 0 on that end at multiples of kBlockKeys or with the keys. The memory begins with an Int8Keys.
  static void begin(const AttentionProblem& problem, std::int64_t kv_len, void* memory) {
    lay_out_keys(problem, kv_len, static_cast<char*>(memory));
    const Int8KeysMemory& head = *static_cast<const Int8KeysMemory*>(memory);
    for (std::int64_t d = 0; d < head.padded_dim; ++d) {
      head.sums[d] = 0;
      head.mean[d] = 0;
    }
    std::int8_t* end = head.rows + kv_len * head.keys.row_bytes;
    for (std::int64_t i = 0; i < (head.padded_keys - kv_len) * head.keys.row_bytes; ++i) end[i] = 0;
    for (std::int64_t key = kv_len; key < head.padded_keys; ++key) {
      head.scales[key] = 0;
      head.corrections[key] = 0;
    }
  }

  static void add_to_mean(const AttentionProblem& problem, const AttentionTask& task,
                          std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Int8KeysMemory& head = *static_cast<const Int8KeysMemory*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += kWidth) {
      const std::int64_t count = read_rows(problem, task, key, key_end, head);
      for (std::int64_t d = 0; d < head.padded_dim; d += kWidth) {
        double sums[kWidth];
        for (int i = 0; i < kWidth; ++i) sums[i] = head.sums[d + i];
        for (std::int64_t row = 0; row < count; ++row) {
          const float* from = head.block + row * head.padded_dim + d;
          for (int i = 0; i < kWidth; ++i) sums[i] += from[i] - from[i] == 0 ? from[i] : 0.0f;
        }
        for (int i = 0; i < kWidth; ++i) head.sums[d + i] = sums[i];
      }
    }
    if (key_end != task.kv_len) return;
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      const double mean = head.sums[d] / static_cast<double>(task.kv_len);
      head.mean[d] = mean <= kLargestMean && mean >= -kLargestMean ? static_cast<float>(mean) : 0.0f;
    }
  }

  static void quantise(const AttentionProblem& problem, const AttentionTask& task,
                       std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Int8KeysMemory& head = *static_cast<const Int8KeysMemory*>(memory);
    const std::int64_t stride = head.padded_dim;
    for (std::int64_t key = key_begin; key < key_end; key += kWidth) {
      const std::int64_t count = read_rows(problem, task, key, key_end, head);
      // Of each key in a lane: the largest magnitude, later the sum.
      Vec<float> of_rows[kWidth];
      for (int row = 0; row < kWidth; ++row) {
        Mask<float> largest{};
        for (std::int64_t d = 0; row < count && d < stride; d += kWidth) {
          float* at = head.block + row * stride + d;
          const Vec<float> centred = load<float>(at) - load<float>(head.mean + d);
          store(at, centred);
          largest = larger(largest, magnitude_bits(centred));
        }
        of_rows[row] = as_value<float>(largest);
      }
      transpose<float>(of_rows);
      Mask<float> largest = as_bits<float>(of_rows[0]);
      for (int i = 1; i < kWidth; ++i) largest = larger(largest, as_bits<float>(of_rows[i]));
      float scales[kWidth], inverses[kWidth];
      store(scales, step_of(largest));
      store(inverses, inverse_step(largest));

      for (int row = 0; row < kWidth; ++row) {
        Vec<float> sum{};
        if (row < count) {
          std::int8_t* to = head.rows + (key + row) * head.keys.row_bytes;
          if (scales[row] - scales[row] == 0)
            sum = finite_row(head.block + row * stride, stride, inverses[row], to);
          else
            sum = infinite_row(head.block + row * stride, problem.head_dim, to);
          head.scales[key + row] = scales[row];
        }
        of_rows[row] = sum;
      }
      transpose<float>(of_rows);
      Vec<float> sum = of_rows[0];  // of integers: exact in any order
      for (int i = 1; i < kWidth; ++i) sum = sum + of_rows[i];
      float sums[kWidth];
      store(sums, sum);
      for (std::int64_t row = 0; row < count; ++row)
        head.corrections[key + row] = -128 * static_cast<std::int32_t>(sums[row]);
    }
  }

 private:
  static std::int64_t lay_out_keys(const AttentionProblem& problem, std::int64_t kv_len,
                                   char* memory) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t bytes) {
      char* start = memory ? memory + used : nullptr;
      used = round_up(used + bytes, 64);
      return start;
    };
    take(sizeof(Int8KeysMemory));
    Int8KeysMemory head{};
    head.padded_dim = round_up(problem.head_dim, kWidth);
    head.padded_keys = round_up(kv_len, Shape::kRows);
    head.keys.row_bytes = round_up(problem.head_dim, 4);
    // Rows are written in whole vectors, each over what the one before left behind its end.
    head.rows = reinterpret_cast<std::int8_t*>(take(head.padded_keys * head.keys.row_bytes + kWidth));
    head.scales = reinterpret_cast<float*>(take(head.padded_keys * 4));
    head.corrections = reinterpret_cast<std::int32_t*>(take(head.padded_keys * 4));
    head.mean = reinterpret_cast<float*>(take(head.padded_dim * 4));
    head.sums = reinterpret_cast<double*>(take(head.padded_dim * 8));
    head.block = reinterpret_cast<float*>(take(kWidth * head.padded_dim * 4));
    head.keys.rows = head.rows;
    head.keys.scales = head.scales;
    head.keys.corrections = head.corrections;
    head.keys.mean = head.mean;
    if (memory) *reinterpret_cast<Int8KeysMemory*>(memory) = head;
    return used;
  }

  // Up to kWidth keys from `key` on, as float32. Returns how many.
  REGARD_INLINE std::int64_t read_rows(const AttentionProblem& problem, const AttentionTask& task,
                                       std::int64_t key, std::int64_t end,
                                       const Int8KeysMemory& head) {
    const std::int64_t count = end - key < kWidth ? end - key : kWidth;
    copy_rows<float>(problem.key, task.key, key, count, problem.head_dim, head.block, count,
                     head.padded_dim);
    return count;
  }

  // Writes a row; returns the sum of its numbers, in lanes.
  REGARD_INLINE Vec<float> finite_row(const float* from, std::int64_t columns, float inverse,
                                      std::int8_t* to) {
    const Vec<float> round = broadcast(kRoundToInteger);
    Vec<float> sum{};
    for (std::int64_t d = 0; d < columns; d += kWidth) {
      const Vec<float> rounded = load<float>(from + d) * broadcast(inverse) + round;
      sum = sum + (rounded - round);
      const Mask<float> integers = as_bits<float>(rounded) << 24 >> 24;  // the low byte, with its sign
      *reinterpret_cast<Int8Lanes*>(to + d) = __builtin_convertvector(integers, Int8Lanes);
    }
    return sum;
  }

  REGARD_NOINLINE Vec<float> infinite_row(const float* from, std::int64_t columns, std::int8_t* to) {
    Vec<float> sum{};
    for (std::int64_t d = 0; d < round_up(columns, 4); ++d) {
      const bool is_infinite = d < columns && (from[d] > kLargest<float> || from[d] < -kLargest<float>);
      to[d] = static_cast<std::int8_t>(!is_infinite ? 0 : from[d] > 0 ? 127 : -127);
      sum[0] += static_cast<float>(to[d]);
    }
    return sum;
  }
};

}  // namespace
}  // namespace regard
