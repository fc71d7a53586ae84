// Rows in the storage type of a cache: each number is rounded to the cache's type, as store_as
// rounds.
#pragma once

#include "../../problem/rows.hpp"
#include "../elements.hpp"

namespace regard {
namespace {

// The bits of the smallest float32 that rounds to infinity.
template <class To>
constexpr std::uint32_t kBeyond = 0x7f800000u;
template <>
constexpr std::uint32_t kBeyond<Float16> = 0x477ff000u;  // 65520
template <>
constexpr std::uint32_t kBeyond<BFloat16> = 0x7f7f8000u;

template <class To>
REGARD_INLINE FloatBits overflows(Vec<float> value) {
  const FloatBits magnitude = reinterpret_cast<FloatBits>(value) & 0x7fffffffu;
  return reinterpret_cast<FloatBits>((magnitude >= kBeyond<To>)&(magnitude < 0x7f800000u));
}

// Returns whether a finite number became infinite.
template <class From, class To>
REGARD_NOINLINE bool store_columns(const From* from, To* to, std::int64_t columns) {
  constexpr int kWidth = kLanes<float>;
  FloatBits found{};
  std::int64_t i = 0;
  for (; i + kWidth <= columns; i += kWidth) {
    const Vec<float> value = load_as<float>(from + i);
    found |= overflows<To>(value);
    store_as<float>(to + i, value);
  }
  Vec<float> rest{};
  for (std::int64_t at = i; at < columns; ++at) {
    const float value = widen(from[at]);
    rest[at - i] = value;
    narrow(value, to[at]);
  }
  found |= overflows<To>(rest);
  return any<float>(reinterpret_cast<Mask<float>>(found));
}

// Writes `columns` elements, rounded to the type of `to`. Returns whether a finite number became
// infinite.
REGARD_NOINLINE bool convert_row(Element from_element, Element to_element, const void* from,
                                 void* to, std::int64_t columns) {
  if (from_element == to_element) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(columns * bytes_of(from_element)));
    return false;
  }
  bool overflows = false;
  with_input_element<float>(from_element, [&](auto given) {
    using From = typename decltype(given)::Type;
    with_result_element<float>(to_element, [&](auto kept) {
      using To = typename decltype(kept)::Type;
      overflows = store_columns(static_cast<const From*>(from), static_cast<To*>(to), columns);
    });
  });
  return overflows;
}

}  // namespace
}  // namespace regard
