// Rows of integers from 0 to 15, in groups of 32 with a scale and a minimum:
//
//   number = integer scale + minimum
//
// Products are computed with the integers. For scores, queries are also rounded to integers:
//
//   score  = step sum over groups (scale sum of query[d] integer[d] + minimum sum of query[d])
//   output = sum over keys of (weight scale) integer + sum over keys of weight minimum
//
// The step of a query is its largest magnitude divided by 32767. The sum of a group's products is
// then less than 15 * 32767 * 32, which float32 represents exactly, so kernels may add in any order
// and type and return the same bits.
#pragma once

#include "../problem/operand.hpp"
#include "../simd/half.hpp"

namespace regard {
namespace {

constexpr int kGroupBytes = kGroupOfFourBits / 2;
constexpr int kMostOfQuery = 32767;
static_assert(15 * kMostOfQuery * kGroupOfFourBits < 1 << 24, "a float32 holds every sum");

// The stored format, which is as large as a float32.
struct GroupScale {
  Float16 scale;
  Float16 minimum;
};

// 1.5 times 2 to the number of mantissa bits: a sum with it has no bits left for a fraction.
template <class T>
constexpr T kRoundsToInteger = sizeof(T) == 4 ? T(12582912.0) : T(6755399441055744.0);

// For a query with this largest magnitude (NaN if the query contains NaN): the step, which
// multiplies the query's integers, and its inverse, which converts the query's numbers to integers.
// A query that contains NaN or inf has a step of NaN, so all its scores are NaN. A query of zeros
// has a step of 0.
template <class T>
struct QuerySteps {
  T step;
  T inverse;
};
template <class T>
REGARD_INLINE QuerySteps<T> query_steps(T largest) {
  constexpr T kMost = T(kMostOfQuery);
  const bool is_finite = largest - largest == T(0);
  if (!is_finite) return {largest - largest + (largest - largest), T(0)};
  // For smaller magnitudes the inverse would be infinite, so such a query counts as 0.
  const bool is_tiny = largest < T(0x1p-100f);
  return is_tiny ? QuerySteps<T>{T(0), T(0)} : QuerySteps<T>{largest / kMost, kMost / largest};
}

// Loads one byte into each lane.
template <class T>
REGARD_INLINE Mask<T> load_pairs(const Nibbles* from) {
#if defined(REGARD_X86_V3)
  if constexpr (sizeof(T) == 4)
    return reinterpret_cast<Mask<T>>(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes<T>), aligned(1), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Mask<T>);
}

// The integers of kLanes bytes: one vector from the lower halves of the bytes, one from the upper
// halves.
template <class T>
struct TwoVectors {
  Vec<T> lower, upper;
};
template <class T>
REGARD_INLINE TwoVectors<T> integers_of(const Nibbles* from) {
  const Mask<T> pairs = load_pairs<T>(from);
  return {__builtin_convertvector(pairs & 15, Vec<T>), __builtin_convertvector(pairs >> 4, Vec<T>)};
}

// to[columns] = the integers of a row.
template <class T>
REGARD_NOINLINE void expand_row(const Nibbles* from, std::int64_t columns, T* to) {
  for (std::int64_t first = 0; first < columns; first += kGroupOfFourBits, from += kGroupBytes)
    for (int i = 0; i < kGroupBytes; i += kLanes<T>) {
      const TwoVectors<T> integers = integers_of<T>(from + i);
      store(to + first + i, integers.lower);
      store(to + first + kGroupBytes + i, integers.upper);
    }
}

}  // namespace
}  // namespace regard
