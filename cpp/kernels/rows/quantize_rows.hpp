// Rows as a cache keeps them in 8 bits: integers, and a scale for each row.
//
//   row[i] = round(x[i] / scale), half to even    scale = the largest |x[i]| / 127
//
// x is the row as it came or, for keys, divided by the size of a group and rotated: then no sum
// overflows, and a product with a rotated query is what it was (hadamard.hpp). A row's result does
// not depend on other rows.
//
//   NaN, inf  make the scale NaN or infinite, and the integers 0
//   tiny      scales are never less than the smallest normal number: others are not precise
#pragma once

#include "../../problem/rows.hpp"
#include "../hadamard.hpp"
#include "../int8_steps.hpp"
#include "../mask_value.hpp"

namespace regard {
namespace {

// `x` is memory for a row.
REGARD_NOINLINE void quantize_row(const float* from, std::int64_t columns, bool rotates, float* x,
                                  std::int8_t* to, float* scale) {
  constexpr float kLeast = 0x1p-126f;
  const float share = rotates ? 1.0f / static_cast<float>(rotated_together(columns)) : 1.0f;
  for (std::int64_t i = 0; i < columns; ++i) x[i] = from[i] * share;
  if (rotates) rotate_row(x, columns);
  // As integers, magnitudes are in order, infinity and then NaN above all.
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < columns; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  float step;
  __builtin_memcpy(&step, &largest, 4);
  step /= kInt8Steps;
  if (step < kLeast) step = kLeast;
  *scale = step;
  if (!(step < kInfinity<float>)) {
    for (std::int64_t i = 0; i < columns; ++i) to[i] = 0;
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i)
    to[i] = static_cast<std::int8_t>(x[i] / step + kRoundToInteger - kRoundToInteger);
}

REGARD_NOINLINE void quantize_rows(const QuantizeProblem& problem, std::int64_t begin,
                                   std::int64_t end, float* x) {
  for (std::int64_t row = begin; row < end; ++row)
    quantize_row(problem.from + row * problem.columns, problem.columns, problem.rotates, x,
                 problem.to + row * problem.columns, problem.scales + row);
}

}  // namespace
}  // namespace regard
