// Calls code that is compiled for an operand's element type, which is known at run time.
#pragma once

#include "../problem/operand.hpp"
#include "../simd/half.hpp"

namespace regard {
namespace {

template <class E>
struct ElementType {
  using Type = E;
};

// Calls body(ElementType<E>{}) for a type whose every value T holds.
template <class T, class Body>
REGARD_INLINE void with_input_element(Element element, Body body) {
  switch (element) {
    case Element::float16:
      return body(ElementType<Float16>{});
    case Element::bfloat16:
      return body(ElementType<BFloat16>{});
    case Element::float64:
      if constexpr (sizeof(T) == 8) return body(ElementType<double>{});
      return;
    default:
      return body(ElementType<float>{});
  }
}

// Likewise for a type that results computed in T may have.
template <class T, class Body>
REGARD_INLINE void with_result_element(Element element, Body body) {
  if constexpr (sizeof(T) == 8) {
    body(ElementType<double>{});
  } else {
    if (element == Element::float16) return body(ElementType<Float16>{});
    if (element == Element::bfloat16) return body(ElementType<BFloat16>{});
    body(ElementType<float>{});
  }
}

// Likewise for weights of a layer: also int8, which scales make up for.
template <class T, class Body>
REGARD_INLINE void with_stored_element(Element element, Body body) {
  if (element == Element::int8) return body(ElementType<std::int8_t>{});
  with_input_element<T>(element, body);
}

// Likewise for keys and values of a cache.
template <class T, class Body>
REGARD_INLINE void with_cached_element(Element element, Body body) {
  if (element == Element::float8) return body(ElementType<Float8>{});
  if (element == Element::q4_1) return body(ElementType<Nibbles>{});
  with_stored_element<T>(element, body);
}

REGARD_INLINE std::int64_t bytes_of(Element element) {
  return element == Element::float64                                   ? 8
         : element == Element::float16 || element == Element::bfloat16 ? 2
         : is_quantized(element) || element == Element::boolean        ? 1
                                                                       : 4;
}

// Whether the kernels can read the elements as they are stored.
template <class T>
REGARD_INLINE bool is_stored_as(Element element) {
  return element == (sizeof(T) == 4 ? Element::float32 : Element::float64);
}

}  // namespace
}  // namespace regard
