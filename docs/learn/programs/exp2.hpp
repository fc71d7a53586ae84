// 2^x, lane by lane, for x <= 64: an integer power in the exponent's bits times a polynomial.
#pragma once

#include "vector.hpp"

typedef int Bits __attribute__((vector_size(4 * kLanes)));

inline Vec exp2(Vec x) {
  // regard's coefficients for 2^f, f in [-0.5, 0.5], highest power first.
  constexpr float c[] = {1.53458121587e-4f, 1.33999312095e-3f, 9.61848895652e-3f,
                         5.55032877700e-2f, 2.40226468906e-1f, 6.93147205737e-1f, 1.0f};
  // A float32 of this size counts in steps of 1. Adding it rounds x to an integer, which the low
  // bits hold together with 127, the bias of a float32's exponent.
  constexpr float round = 12582912.0f + 127.0f;  // 1.5 * 2^23
  const Bits vanishes = x < -126.0f;             // 2^-inf, too
  x = vanishes ? Vec{} : x;
  const Vec shifted = x + round;
  const Vec fraction = x - (shifted - round);
  const Vec power = (Vec)((Bits)shifted << 23);  // the low bits become the exponent
  Vec sum = broadcast(c[0]);
#pragma GCC unroll 6
  for (int i = 1; i < 7; ++i) sum = sum * fraction + c[i];
  return vanishes ? Vec{} : sum * power;
}
