// The element-wise stages of attention, a row at a time, in SIMD: scale, mask, softmax.
//
// A row of any stride goes through pieces of kPiece elements, read in place where it is contiguous.
// The fused kernel computes the same with queries in lanes; these are for whoever wants to see the
// stages one by one.
#pragma once

#include "../../problem/rows.hpp"
#include "../attention/softmax_state.hpp"

namespace regard {
namespace {

constexpr int kPiece = 256;

// Reads a piece as whole vectors, the last one filled up.
template <class T>
struct PieceReader {
  T buffer[kPiece];

  const T* read(const T* row, std::int64_t stride, std::int64_t begin, int count, T filler) {
    if (stride == 1 && count % kLanes<T> == 0) return row + begin;
    for (int i = 0; i < count; ++i) buffer[i] = row[(begin + i) * stride];
    for (int i = count; i < kPiece && i % kLanes<T> != 0; ++i) buffer[i] = filler;
    return buffer;
  }
};

// Calls map(vector, offset) on the whole row and writes what it returns.
template <class T, class Map>
REGARD_INLINE void map_row(const T* input, std::int64_t input_stride, std::int64_t columns,
                           T* output, std::int64_t output_stride, T filler, Map map) {
  PieceReader<T> reader;
  for (std::int64_t begin = 0; begin < columns; begin += kPiece) {
    const int count = columns - begin < kPiece ? static_cast<int>(columns - begin) : kPiece;
    const T* piece = reader.read(input, input_stride, begin, count, filler);
    const bool direct = output_stride == 1 && count % kLanes<T> == 0;
    T mapped[kPiece];
    T* to = direct ? output + begin : mapped;
    for (int i = 0; i < count; i += kLanes<T>) store(to + i, map(load(piece + i), begin + i));
    if (!direct)
      for (int i = 0; i < count; ++i) output[(begin + i) * output_stride] = mapped[i];
  }
}

template <class T>
REGARD_NOINLINE void scale_row(const StageProblem& problem, const StageRow& row) {
  const Vec<T> factor = broadcast(static_cast<T>(problem.factor));
  map_row<T>(static_cast<const T*>(row.input), problem.input.column_stride, problem.columns,
             static_cast<T*>(row.output), problem.output.column_stride, T(0),
             [=](Vec<T> value, std::int64_t) { return value * factor; });
}

template <class T, class M>
REGARD_NOINLINE void mask_row_of(const StageProblem& problem, const StageRow& row) {
  const M* mask = static_cast<const M*>(row.mask);
  const T* input = static_cast<const T*>(row.input);
  T* output = static_cast<T*>(row.output);
  for (std::int64_t i = 0; i < problem.columns; ++i) {
    const M allowed = mask[i * problem.mask.column_stride];
    const T score = input[i * problem.input.column_stride];
    T& masked = output[i * problem.output.column_stride];
    if constexpr (sizeof(M) == 1)
      masked = allowed ? score : -kInfinity<T>;
    else
      masked = allowed == -kInfinity<M> ? -kInfinity<T> : score + mask_value<T>(allowed);
  }
}

template <class T>
REGARD_NOINLINE void softmax_row(const StageProblem& problem, const StageRow& row) {
  const T* input = static_cast<const T*>(row.input);
  T* output = static_cast<T*>(row.output);
  const std::int64_t input_stride = problem.input.column_stride;
  const std::int64_t output_stride = problem.output.column_stride;
  const T minus_infinity = -kInfinity<T>;

  PieceReader<T> reader;
  Vec<T> tops = broadcast(minus_infinity);
  for (std::int64_t begin = 0; begin < problem.columns; begin += kPiece) {
    const std::int64_t left = problem.columns - begin;
    const int count = left < kPiece ? static_cast<int>(left) : kPiece;
    const T* piece = reader.read(input, input_stride, begin, count, minus_infinity);
    for (int i = 0; i < count; i += kLanes<T>) tops = maximum<T>(tops, load(piece + i));
  }
  T top = minus_infinity;
  for (int lane = 0; lane < kLanes<T>; ++lane) top = tops[lane] > top ? tops[lane] : top;
  if (top == minus_infinity) top = T(0);  // nothing but -inf and NaN: exp2 of these, unshifted

  Vec<T> sums{}, piece_sums{};
  map_row<T>(input, input_stride, problem.columns, output, output_stride, minus_infinity,
             [&](Vec<T> value, std::int64_t at) {
               const Vec<T> weight =
                   exp2((value - broadcast(top)) * broadcast(static_cast<T>(kLog2E)));
               if (at % kPiece == 0) {
                 sums = sums + piece_sums;
                 piece_sums = Vec<T>{};
               }
               piece_sums = piece_sums + weight;
               return weight;
             });
  sums = sums + piece_sums;
  T sum = T(0);
  for (int lane = 0; lane < kLanes<T>; ++lane) sum += sums[lane];

  const Vec<T> reciprocal = broadcast(sum == T(0) ? T(0) : T(1) / sum);
  map_row<T>(output, output_stride, problem.columns, output, output_stride, T(0),
             [=](Vec<T> value, std::int64_t) { return value * reciprocal; });
}

template <class T>
REGARD_NOINLINE void stage_row(const StageProblem& problem, const StageRow& row) {
  switch (problem.stage) {
    case Stage::scale:
      return scale_row<T>(problem, row);
    case Stage::softmax:
      return softmax_row<T>(problem, row);
    case Stage::apply_mask:
      if (problem.mask.element == Element::boolean)
        return mask_row_of<T, unsigned char>(problem, row);
      if (problem.mask.element == Element::float32) return mask_row_of<T, float>(problem, row);
      return mask_row_of<T, double>(problem, row);
  }
}

}  // namespace
}  // namespace regard
