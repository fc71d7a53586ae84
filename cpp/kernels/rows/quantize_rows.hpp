// Rows in the quantized types of a cache:
//
//   int8    round(x[i] / scale), half to even     scale = the largest |x[i]| / 127, of each row
//   float8  x[i] rounded to E4M3, half to even
//   q4_1    round((x[i] - minimum) / scale), from 0 to 15, of each 32 numbers;
//           minimum = the smallest x[i], scale = (the largest - minimum) / 15, both in float16
//
// x is the original row or, for keys, the row multiplied by the keys' share and rotated
// (hadamard.hpp).
//
//   tiny      scales of int8 are at least the smallest normal number: smaller ones are not precise
//   NaN, inf, and numbers that the type cannot hold: `quantize_rows` returns false, and its output
//             is meaningless
#pragma once

#include "../../problem/rows.hpp"
#include "../groups_of_four_bits.hpp"
#include "../hadamard.hpp"
#include "../mask_value.hpp"

namespace regard {
namespace {

REGARD_NOINLINE bool quantize_to_int8(const float* x, std::int64_t columns, std::int8_t* to,
                                      float* scale) {
  constexpr float kLeast = 0x1p-126f;
  // As integers, magnitudes are ordered, followed by infinity and then NaN.
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
  if (!(step < kInfinity<float>)) return false;
  for (std::int64_t i = 0; i < columns; ++i)
    to[i] =
        static_cast<std::int8_t>(x[i] / step + kRoundsToInteger<float> - kRoundsToInteger<float>);
  return true;
}

REGARD_NOINLINE bool quantize_to_float8(const float* x, std::int64_t columns, Float8* to) {
  bool is_held = true;
  for (std::int64_t i = 0; i < columns; ++i) {
    to[i].bits = float8_bits(x[i]);
    is_held &= (to[i].bits & 0x7f) != 0x7f;
  }
  return is_held;
}

REGARD_NOINLINE bool quantize_group(const float* x, Nibbles* to, GroupScale* scale) {
  float least = x[0], most = x[0];
  bool is_finite = true;
  for (int i = 0; i < kGroupOfFourBits; ++i) {
    is_finite &= x[i] - x[i] == 0.0f;
    least = x[i] < least ? x[i] : least;
    most = x[i] > most ? x[i] : most;
  }
  narrow(least, scale->minimum);
  const float minimum = widen(scale->minimum);
  // If the minimum was rounded up, all numbers may be below it.
  narrow(most > minimum ? (most - minimum) / 15.0f : 0.0f, scale->scale);
  const float step = widen(scale->scale);
  if (!is_finite || !(minimum - minimum == 0.0f) || !(step - step == 0.0f)) return false;
  const auto integer = [&](int i) {
    const float steps = step > 0.0f ? (x[i] - minimum) / step : 0.0f;
    const float in_range = steps < 0.0f ? 0.0f : steps > 15.0f ? 15.0f : steps;
    return static_cast<unsigned>(in_range + kRoundsToInteger<float> - kRoundsToInteger<float>);
  };
  for (int i = 0; i < kGroupBytes; ++i)
    to[i].two = static_cast<std::uint8_t>(integer(i) | integer(kGroupBytes + i) << 4);
  return true;
}

// `x` is memory for one row.
REGARD_NOINLINE bool quantize_row(const QuantizeProblem& problem, std::int64_t row, float* x) {
  const std::int64_t columns = problem.columns;
  const float share = problem.rotates ? key_share(problem.element, columns) : 1.0f;
  for (std::int64_t i = 0; i < columns; ++i) x[i] = problem.from[row * columns + i] * share;
  if (problem.rotates) rotate_row(x, columns);
  if (problem.element == Element::int8)
    return quantize_to_int8(x, columns, static_cast<std::int8_t*>(problem.to) + row * columns,
                            static_cast<float*>(problem.scales) + row);
  if (problem.element == Element::float8)
    return quantize_to_float8(x, columns, static_cast<Float8*>(problem.to) + row * columns);
  const std::int64_t groups = columns / kGroupOfFourBits;
  auto* const to = static_cast<Nibbles*>(problem.to) + row * groups * kGroupBytes;
  auto* const scales = static_cast<GroupScale*>(problem.scales) + row * groups;
  bool is_held = true;
  for (std::int64_t group = 0; group < groups; ++group)
    is_held &=
        quantize_group(x + group * kGroupOfFourBits, to + group * kGroupBytes, scales + group);
  return is_held;
}

// Returns whether the type can hold all numbers.
REGARD_NOINLINE bool quantize_rows(const QuantizeProblem& problem, std::int64_t begin,
                                   std::int64_t end, float* x) {
  bool are_held = true;
  for (std::int64_t row = begin; row < end; ++row) are_held &= quantize_row(problem, row, x);
  return are_held;
}

}  // namespace
}  // namespace regard
