// Rows as a cache keeps them: each number rounded to the cache's type, as store_as rounds.
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
  return reinterpret_cast<FloatBits>((magnitude >= kBeyond<To>) & (magnitude < 0x7f800000u));
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

// The columns from `begin` to `end` of a row.
REGARD_NOINLINE bool convert_row(const ConvertProblem& problem, const void* from, void* to,
                               std::int64_t begin, std::int64_t end) {
  const std::int64_t bytes = bytes_of(problem.from.element);
  if (problem.from.element == problem.to.element) {
    __builtin_memcpy(static_cast<char*>(to) + begin * bytes,
                     static_cast<const char*>(from) + begin * bytes,
                     static_cast<std::size_t>((end - begin) * bytes));
    return false;
  }
  bool overflows = false;
  with_input_element<float>(problem.from.element, [&](auto given) {
    using From = typename decltype(given)::Type;
    with_result_element<float>(problem.to.element, [&](auto kept) {
      using To = typename decltype(kept)::Type;
      overflows = store_columns(static_cast<const From*>(from) + begin, static_cast<To*>(to) + begin,
                                end - begin);
    });
  });
  return overflows;
}

}  // namespace
}  // namespace regard
