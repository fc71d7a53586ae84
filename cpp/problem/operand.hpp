// An array as the kernels see it, as plain data: a pointer, an element type and strides.
//
// Every stride is in elements of its own array and may be zero or negative; every index is 64 bits wide.
// Batch axes are described by pointers, so that a problem stays small: whoever makes a problem keeps the
// numbers alive as long as it is used.
#pragma once

#include <cstdint>

namespace regard {

enum class Scalar { float32, float64 };  // what is computed in
enum class Element { boolean, int8, float16, bfloat16, float32, float64 };  // how it is stored

// In bytes.
constexpr std::int64_t size_of(Element element) {
  switch (element) {
    case Element::boolean:
    case Element::int8:
      return 1;
    case Element::float16:
    case Element::bfloat16:
      return 2;
    case Element::float32:
      return 4;
    case Element::float64:
      return 8;
  }
  return 0;
}

constexpr int kMaxBatchAxes = 64;  // NumPy allows no more axes in all

struct BatchShape {
  int axes = 0;
  std::int64_t count = 1;                // product of the sizes
  const std::int64_t* sizes = nullptr;   // [axes]
};

// An array seen as (batch..., head, row, column). Broadcast axes have stride 0.
struct Operand {
  void* data = nullptr;  // null where the problem has no such array
  Element element = Element::float32;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
  const std::int64_t* batch_strides = nullptr;  // [axes of the batch]
  std::int64_t page_stride = 0;                 // where rows lie in pages
};

// One number for each batch entry. Broadcast axes have stride 0.
struct PerEntry {
  const std::int64_t* data = nullptr;  // null where the problem has no such number
  const std::int64_t* batch_strides = nullptr;
};

// One number for each query head, which may differ between batch entries. Broadcast axes have stride 0.
struct PerHead {
  const double* data = nullptr;  // null where the problem has no such number
  std::int64_t head_stride = 0;
  const std::int64_t* batch_strides = nullptr;
};

}  // namespace regard
