// A matrix product, and the part of it that one thread computes at a time.
#pragma once

#include "operand.hpp"

namespace regard {

// int8 numbers of b share one scale per column in groups of this many rows (k).
constexpr std::int64_t kScaleGroup = 64;

// c[row][column] = sum over k of a[row][k] b[k][column].
//
// b may be narrow: float16, bfloat16, or int8. int8 numbers are multiplied by scales[k /
// kScaleGroup][column]. A scale is 0 or at least 2^-102 in magnitude, so that it can be divided by
// 2^24 without loss.
struct MatmulProblem {
  Scalar scalar;
  BatchShape batch;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t depth;
  Operand a;
  Operand b;
  Operand scales;  // float32, without a batch; data is null unless b is int8
  Operand c;
};

struct MatmulTask {
  const void* a;
  const void* b;
  void* c;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t column_begin;
  std::int64_t column_end;
  std::int64_t depth_begin;  // 0 overwrites c; later intervals add to it
  std::int64_t depth_end;
};

// A part of a product whose rows of a and columns of b are packed once, for all of its tasks. It
// begins at multiples of the kernels' tile rows, panel columns and depth.
struct MatmulWave {
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t column_begin;
  std::int64_t column_end;
  std::int64_t depth_begin;
  std::int64_t depth_end;
  void* rows;    // of a
  void* panels;  // of b
};

}  // namespace regard
