// Softmax of rows: a maximum, the exponentials and their sum, and a product with the reciprocal of
// the sum.
//
// A row's exponentials are summed in this order, whatever its stride: each lane of a vector over a
// piece of kPiece elements, then the lanes of all pieces, one piece after another, and then the
// lanes. If neighboring rows are adjacent in memory (softmax along an axis other than the last),
// rows are in lanes and are summed in the same order.
#pragma once

#include "../../problem/rows.hpp"
#include "../strips/softmax_state.hpp"
#include "elements.hpp"

namespace regard {
namespace {

constexpr int kPiece = 256;
constexpr int kWaiting = 2048;  // 8 or 16 KB

template <class T>
REGARD_INLINE Vec<T> exponential(Vec<T> value, Vec<T> top) {
  return exp(value - top);
}

template <class T>
REGARD_INLINE T largest_lane(Vec<T> values) {
  T top = -kInfinity<T>;
  for (int lane = 0; lane < kLanes<T>; ++lane) top = values[lane] > top ? values[lane] : top;
  // The row contains only -inf and NaN: exp of these, unshifted.
  return top == -kInfinity<T> ? T(0) : top;
}

// Returns the largest element of a row with contiguous elements.
template <class T>
REGARD_INLINE T largest(const T* row, std::int64_t columns) {
  constexpr int kWidth = kLanes<T>, kTurns = 4;  // a single maximum would be one dependency chain
  Vec<T> tops[kTurns];
  for (Vec<T>& top : tops) top = broadcast(-kInfinity<T>);
  std::int64_t at = 0;
  for (; at + kTurns * kWidth <= columns; at += kTurns * kWidth)
#pragma GCC unroll 4
    for (int turn = 0; turn < kTurns; ++turn)
      tops[turn] = maximum<T>(tops[turn], load(row + at + turn * kWidth));
  for_vectors<T>(row, 1, at, columns, -kInfinity<T>, [&](Vec<T> value, std::int64_t, std::int64_t) {
    tops[0] = maximum<T>(tops[0], value);
  });
  return largest_lane<T>(maximum<T>(maximum<T>(tops[0], tops[1]), maximum<T>(tops[2], tops[3])));
}

// Computes the exponentials of a row minus its largest element, and the reciprocal of their sum.
// The exponentials use no memory beyond L1, so `bring(first element)` may prefetch the data that is
// needed next.
template <class T, class Bring>
REGARD_INLINE T exponentials(const T* input, std::int64_t stride, std::int64_t columns, T largest,
                             T* output, std::int64_t output_stride, Bring bring) {
  const Vec<T> top = broadcast(largest);
  Vec<T> sums{};
  for (std::int64_t begin = 0; begin < columns; begin += kPiece) {
    const std::int64_t end = columns - begin < kPiece ? columns : begin + kPiece;
    Vec<T> piece{};
    map_vectors<T>(input, stride, begin, end, -kInfinity<T>, output, output_stride,
                   [&](Vec<T> value, std::int64_t at) {
                     bring(at);
                     const Vec<T> weight = exponential<T>(value, top);
                     piece = piece + weight;
                     return weight;
                   });
    sums = sums + piece;
  }
  T sum = T(0);
  for (int lane = 0; lane < kLanes<T>; ++lane) sum += sums[lane];
  return sum == T(0) ? T(0) : T(1) / sum;
}

template <class T>
REGARD_INLINE void multiply_row(const T* row, std::int64_t stride, std::int64_t columns, T factor,
                                T* output) {
  const Vec<T> all = broadcast(factor);
  map_aligned<T>(row, stride, 0, columns, output, stride,
                 [=](Vec<T> value, std::int64_t) { return value * all; });
}

// Computes a row with contiguous results. Elements that are not contiguous are first copied to the
// results. `next` is the following row, or this row.
template <class T>
REGARD_NOINLINE void softmax_row(const T* input, std::int64_t stride, std::int64_t columns,
                                 T* output, const T* next) {
  if (stride != 1) {
    map_vectors<T>(input, stride, 0, columns, T(0), output, 1,
                   [](Vec<T> value, std::int64_t) { return value; });
    input = output;
  }
  // The exponentials wait in L1, aligned to vectors wherever the results begin.
  alignas(64) T waiting[kWaiting];
  T* const weights = columns <= kWaiting ? waiting : output;
  // Without this, the processor waits for memory at the beginning and at the end of a row, and
  // computes in between.
  const auto bring = [=](std::int64_t at) {
    __builtin_prefetch(output + at, 1);
    __builtin_prefetch(next + at * stride);
  };
  const T factor = exponentials(input, 1, columns, largest(input, columns), weights, 1, bring);
  multiply_row(weights, 1, columns, factor, output);
}

template <class T>
REGARD_NOINLINE void softmax_row_with_gaps(const StageProblem& problem, const T* input, T* output) {
  const std::int64_t stride = problem.input.column_stride, columns = problem.columns;
  Vec<T> tops = broadcast(-kInfinity<T>);
  for_vectors<T>(input, stride, 0, columns, -kInfinity<T>,
                 [&](Vec<T> value, std::int64_t, std::int64_t) { tops = maximum<T>(tops, value); });
  const std::int64_t output_stride = problem.output.column_stride;
  const T factor = exponentials(input, stride, columns, largest_lane<T>(tops), output,
                                output_stride, [](std::int64_t) {});
  multiply_row(output, output_stride, columns, factor, output);
}

// Computes kVectors * kLanes rows that are adjacent in memory.
template <class T, int kVectors>
REGARD_NOINLINE void softmax_side_by_side(const StageProblem& problem, const T* input, T* output) {
  constexpr int kWidth = kLanes<T>;
  constexpr std::int64_t kAhead = 8;
  const std::int64_t stride = problem.input.column_stride, columns = problem.columns;
  const std::int64_t output_stride = problem.output.column_stride;
  const Vec<T> minus_infinity = broadcast(-kInfinity<T>);

  Vec<T> tops[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) tops[v] = minus_infinity;
  for (std::int64_t i = 0; i < columns; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      // The processor does not prefetch a line that is one matrix row away.
      __builtin_prefetch(input + (i + kAhead) * stride + v * kWidth, 0, 2);
      tops[v] = maximum<T>(tops[v], load(input + i * stride + v * kWidth));
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v)
    tops[v] = select<T>(tops[v] == minus_infinity, Vec<T>{}, tops[v]);

  // Element i corresponds to lane i % kWidth of a contiguous row.
  Vec<T> sums[kWidth][kVectors] = {};
  for (std::int64_t begin = 0; begin < columns; begin += kPiece) {
    const std::int64_t end = columns - begin < kPiece ? columns : begin + kPiece;
    Vec<T> piece[kWidth][kVectors] = {};
    for (std::int64_t i = begin; i < end; ++i) {
      Vec<T>* const lane = piece[i % kWidth];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> weight = exponential<T>(load(input + i * stride + v * kWidth), tops[v]);
        lane[v] = lane[v] + weight;
        store(output + i * output_stride + v * kWidth, weight);
      }
    }
    for (int lane = 0; lane < kWidth; ++lane)
      for (int v = 0; v < kVectors; ++v) sums[lane][v] = sums[lane][v] + piece[lane][v];
  }
  Vec<T> reciprocals[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> sum{};
    for (int lane = 0; lane < kWidth; ++lane) sum = sum + sums[lane][v];
    reciprocals[v] = select<T>(sum == Vec<T>{}, Vec<T>{}, broadcast(T(1)) / sum);
  }
  for (std::int64_t i = 0; i < columns; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      T* const at = output + i * output_stride + v * kWidth;
      store(at, load(at) * reciprocals[v]);
    }
}

template <class T>
REGARD_INLINE void softmax_rows(const StageProblem& problem, const StageRows& rows) {
  const T* const input = static_cast<const T*>(rows.input);
  T* const output = static_cast<T*>(rows.output);
  const bool are_side_by_side =
      rows.input_stride == 1 && rows.output_stride == 1 && problem.columns > 1;
  std::int64_t row = 0;
  if (are_side_by_side) {
    for (; row + 4 * kLanes<T> <= rows.count; row += 4 * kLanes<T>)
      softmax_side_by_side<T, 4>(problem, input + row, output + row);
    for (; row + kLanes<T> <= rows.count; row += kLanes<T>)
      softmax_side_by_side<T, 1>(problem, input + row, output + row);
  }
  for (; row < rows.count; ++row) {
    const T* const from = input + row * rows.input_stride;
    T* const to = output + row * rows.output_stride;
    if (problem.output.column_stride == 1)
      softmax_row<T>(from, problem.input.column_stride, problem.columns, to,
                     row + 1 < rows.count ? from + rows.input_stride : from);
    else
      softmax_row_with_gaps<T>(problem, from, to);
  }
}

}  // namespace
}  // namespace regard
