// An array as the kernels see it, as plain data: a pointer, an element type and strides.
//
// Every stride is in elements of the array and may be zero or negative. Every index has 64 bits.
// Batch axes are described by pointers, so that a problem stays small. The creator of a problem
// keeps these numbers alive as long as the problem is used.
#pragma once

#include <cstdint>

namespace regard {

enum class Scalar { float32, float64 };  // the type of the arithmetic

// The storage type. float8 is E4M3: one sign bit, four exponent bits, three mantissa bits. float8_e5m2
// is the upper half of a float16. q4_1 has integers from 0 to 15, two per byte: in the 16 bytes of a
// group of 32 integers, the lower halves hold the first 16.
enum class Element { boolean, int8, float8, float8_e5m2, q4_1, float16, bfloat16, float32, float64 };

// Whether each row has a scale that multiplies products with its numbers.
constexpr bool has_row_scales(Element element) {
  return element == Element::int8 || element == Element::float8 || element == Element::float8_e5m2;
}

constexpr bool is_quantized(Element element) { return has_row_scales(element) || element == Element::q4_1; }

constexpr std::int64_t kGroupOfFourBits = 32;  // q4_1 numbers that share a scale and a minimum

// The size in bytes. Strides of q4_1 are also in bytes.
constexpr std::int64_t size_of(Element element) {
  switch (element) {
    case Element::boolean:
    case Element::int8:
    case Element::float8:
    case Element::float8_e5m2:
    case Element::q4_1:
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

constexpr int kMaxBatchAxes = 64;  // NumPy's maximum number of axes

struct BatchShape {
  int axes = 0;
  std::int64_t count = 1;                // product of the sizes
  const std::int64_t* sizes = nullptr;   // [axes]
};

// An array seen as (batch..., head, row, column). Broadcast axes have stride 0.
struct Operand {
  void* data = nullptr;  // null if the problem has no such array
  Element element = Element::float32;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
  const std::int64_t* batch_strides = nullptr;  // [batch axes]
  std::int64_t page_stride = 0;                 // if rows are stored in pages
};

// One number for each batch entry. Broadcast axes have stride 0.
struct PerEntry {
  const std::int64_t* data = nullptr;  // null if the problem has no such number
  const std::int64_t* batch_strides = nullptr;
};

// One number for each query head, which may differ between batch entries. Broadcast axes have
// stride 0.
struct PerHead {
  const double* data = nullptr;  // null if the problem has no such number
  std::int64_t head_stride = 0;
  const std::int64_t* batch_strides = nullptr;
};

}  // namespace regard
