// An array as the kernels see it, as plain data: a pointer, an element type and strides.
//
// Every stride is in elements of its own array and may be zero or negative; every index is 64 bits wide.
#pragma once

#include <cstdint>

namespace regard {

enum class Scalar { float32, float64 };  // what is computed in
enum class Element { boolean, int8, float16, bfloat16, int32, float32, float64, int64 };  // how it is stored

constexpr int kMaxBatchAxes = 64;  // NumPy allows no more axes in all

// An array seen as (batch..., head, row, column). Broadcast axes have stride 0.
struct Operand {
  void* data;
  Element element;
  std::int64_t head_stride;
  std::int64_t row_stride;
  std::int64_t column_stride;
  std::int64_t batch_strides[kMaxBatchAxes];
  std::int64_t page_stride;  // where rows lie in pages
};

struct BatchShape {
  int axes;
  std::int64_t count;  // product of the sizes
  std::int64_t sizes[kMaxBatchAxes];
};

}  // namespace regard
