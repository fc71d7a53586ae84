// Decays of a chunk. The state at token i contains the update of token j <= i times
// exp(G_i - G_j), where G are the sums of decays from the start of the chunk. Only differences are
// exponentiated, so sums far below zero neither overflow nor lose what later tokens add. Sums are
// kept as two numbers, because a difference may be much smaller than the sums.
#pragma once

#include "../../simd/exp.hpp"
#include "../elements.hpp"
#include "../pack.hpp"
#include "products.hpp"

namespace regard {
namespace {

// A decay that is infinite, or might as well be: differences of infinite sums would be NaN. Whatever
// 63 tokens multiply, if it is finite, does not return from it.
template <class T>
REGARD_INLINE Vec<T> finite_decay(Vec<T> decay) {
  const Vec<T> most = broadcast(sizeof(T) == 4 ? T(1e4) : T(1e5));
  const Vec<T> low = select<T>(decay < -most, -most, decay);
  return select<T>(low > most, most, low);
}

template <class T>
struct DecaySum {
  Vec<T> sum;
  Vec<T> rest;

  // Knuth's exact sum of two numbers.
  REGARD_MEMBER void add(Vec<T> decay) {
    const Vec<T> total = sum + decay, added = total - sum;
    rest = rest + ((sum - (total - added)) + (decay - added));
    sum = total;
  }
  REGARD_MEMBER DecaySum since(const DecaySum& earlier) const {
    DecaySum difference{sum, rest - earlier.rest};
    difference.add(-earlier.sum);
    return difference;
  }
};

// What the product of x and log2(e) in exp loses where it is not fused: Dekker's exact product.
template <class T>
REGARD_INLINE Vec<T> rest_of_exponent([[maybe_unused]] Vec<T> x) {
#if !defined(REGARD_X86_V4) && !defined(REGARD_X86_V3) && !defined(REGARD_NEON)
  const Vec<T> split = broadcast(sizeof(T) == 4 ? T(4097) : T(134217729));
  const auto high_of = [&](Vec<T> y) { return split * y - (split * y - y); };
  const Vec<T> scale = broadcast(static_cast<T>(kLog2E)), product = x * scale;
  const Vec<T> x_high = high_of(x), x_low = x - x_high;
  const Vec<T> scale_high = high_of(scale), scale_low = scale - scale_high;
  const Vec<T> rest = x_low * scale_low -
                      (((product - x_high * scale_high) - x_low * scale_high) - x_high * scale_low);
  return rest * broadcast(static_cast<T>(kLn2));
#else
  return Vec<T>{};
#endif
}

// The factor of a decay, up to infinity. What the rounding of the exponent, and of log2(e) in exp,
// would lose is in proportion to the exponent, and the decays of a column are products of factors
// with large exponents of both signs.
template <class T>
REGARD_INLINE Vec<T> factor_of(const DecaySum<T>& decay) {
  constexpr T kHighest = sizeof(T) == 4 ? T(88.8) : T(709.9);  // above the logarithm of the largest
  constexpr T kLog2ERest = sizeof(T) == 4 ? T(1.3349e-8) : T(1.41092e-17);  // times ln(2)
  const Vec<T> x = decay.sum + decay.rest, rest = decay.rest - (x - decay.sum);
  const Vec<T> power = exp(select<T>(x > broadcast(kHighest), broadcast(kHighest), x));
  return power * (broadcast(T(1)) + fma(x, broadcast(kLog2ERest), rest + rest_of_exponent<T>(x)));
}

// Copies an array with a row per token to rows of `padded` elements, zeros after those it has.
template <class T>
REGARD_NOINLINE void copy_tokens(const Operand& operand, const void* data, std::int64_t first,
                                 std::int64_t count, std::int64_t columns, T* to,
                                 std::int64_t padded_count, std::int64_t padded) {
  with_input_element<T>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    copy_padded<T>(static_cast<const From*>(data) + first * operand.row_stride, operand.row_stride,
                   operand.column_stride, count, columns, to, padded_count, padded);
  });
}

template <class T>
REGARD_NOINLINE void multiply_rows_by(std::int64_t count, const Rows<T>& rows, const T* factors) {
  for (std::int64_t row = 0; row < count; ++row)
    for (std::int64_t at = 0; at < rows.stride; at += kLanes<T>)
      store(rows.at(row) + at, load(rows.at(row) + at) * broadcast(factors[row]));
}

// to[column][row] = rows[row][column]
template <class T>
REGARD_NOINLINE void transpose_rows(std::int64_t count, const Rows<T>& rows, std::int64_t columns,
                                    const Rows<T>& to) {
  const T* each[kChunk];
  for (std::int64_t row = 0; row < count; ++row) each[row] = rows.at(row);
  rows_to_lanes<T, T>(each, static_cast<int>(count), 1, columns, to.data, to.stride, Identity{});
}

// The same for more rows, which are read and written as many at a time as a chunk has.
template <class T>
REGARD_NOINLINE void transpose_matrix(std::int64_t count, const Rows<T>& rows, std::int64_t columns,
                                      const Rows<T>& to) {
  for (std::int64_t row = 0; row < count; row += kChunk)
    transpose_rows<T>(count - row < kChunk ? count - row : kChunk, {rows.at(row), rows.stride},
                      columns, {to.data + row, to.stride});
}

// One decay per token.
template <class Shape>
struct DecayOfTokens {
  using T = typename Shape::Element;
  using Workspace = LinearWorkspace<Shape>;

  // Sets the decays of pairs of tokens, from the start, and those to the end in `to_end`.
  REGARD_NOINLINE void prepare(const LinearProblem& problem, const LinearTask& task,
                               std::int64_t first, std::int64_t count, const Workspace& work,
                               T* to_end) {
    copy_tokens<T>(problem.decay, task.decay, first, count, 1, work.sums, count, 1);
    DecaySum<T> total{};
    for (std::int64_t i = 0; i < count; ++i) {
      total.add(finite_decay<T>(broadcast(work.sums[i])));
      work.sums[i] = total.sum[0];
      work.rests[i] = total.rest[0];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const DecaySum<T> own{broadcast(work.sums[i]), broadcast(work.rests[i])};
      T* const pairs = work.pair_decays + i * Workspace::kScores;
      for (std::int64_t j = 0; j <= i; j += kLanes<T>)
        store(pairs + j, factor_of<T>(own.since(at(work, j))));
    }
    for (std::int64_t i = 0; i < count; i += kLanes<T>) {
      store(work.row_decays + i, factor_of<T>(at(work, i)));
      store(to_end + i, factor_of<T>(total.since(at(work, i))));
    }
    const T whole = work.row_decays[count - 1];
    for (std::int64_t row = 0; row < problem.head_dim; ++row) work.state_decay[row] = whole;
  }

 private:
  REGARD_INLINE DecaySum<T> at(const Workspace& work, std::int64_t token) {
    return {load(work.sums + token), load(work.rests + token)};
  }
};

}  // namespace
}  // namespace regard
