// Calls code that is compiled for the element type of an operand, which is known only at run time.
#pragma once

#include "../problem/operand.hpp"
#include "../simd/half.hpp"

namespace regard {
namespace {

template <class E>
struct ElementType {
  using Type = E;
};

// Calls body(ElementType<E>{}) for an element type whose values T can represent.
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

// Likewise for the types of results computed in T.
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

// Likewise for the weights of a layer, which may also be int8 with scales.
template <class T, class Body>
REGARD_INLINE void with_stored_element(Element element, Body body) {
  if (element == Element::int8) return body(ElementType<std::int8_t>{});
  with_input_element<T>(element, body);
}

// Likewise for the keys and values that a decode reads in place.
template <class T, class Body>
REGARD_INLINE void with_cached_element(Element element, Body body) {
  if (element == Element::float8) return body(ElementType<Float8>{});
  if (element == Element::q4_1) return body(ElementType<Nibbles>{});
  with_stored_element<T>(element, body);
}

// Likewise for rows that are copied.
template <class T, class Body>
REGARD_INLINE void with_copied_element(Element element, Body body) {
  if (element == Element::float8_e5m2) return body(ElementType<Float8E5M2>{});
  with_cached_element<T>(element, body);
}

REGARD_INLINE std::int64_t bytes_of(Element element) {
  return element == Element::float64                                   ? 8
         : element == Element::float16 || element == Element::bfloat16 ? 2
         : is_quantized(element) || element == Element::boolean        ? 1
                                                                       : 4;
}

// Whether the kernels can read the elements without conversion.
template <class T>
REGARD_INLINE bool is_stored_as(Element element) {
  return element == (sizeof(T) == 4 ? Element::float32 : Element::float64);
}

}  // namespace
}  // namespace regard
