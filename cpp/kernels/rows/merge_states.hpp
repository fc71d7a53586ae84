// Merges attention over disjoint sets of keys. A group of rows is processed at a time: first their
// sums, side by side in lanes, then each row's outputs along value_dim. A row's result does not
// depend on other rows.
//
// A part's weight is computed in float64 and rounded once, which keeps the weights of parts of very
// different size accurate. Products and sums are rounded separately, in the order of the parts,
// both in vectors and in single elements, so strides do not affect the bits. A part in which a row
// is fully masked is skipped, not multiplied by zero.
#pragma once

#include "../../problem/rows.hpp"
#include "../../simd/exp.hpp"
#include "../elements.hpp"
#include "../mask_value.hpp"

namespace regard {
namespace {

constexpr int kMergePiece = 256;   // elements of a row that are summed in L1
constexpr double kLeftOut = -1.0;  // stored instead of a weight

// shares[part][row] = the part's lse.
REGARD_NOINLINE void gather_sums(const MergeProblem& problem, const MergeRows& rows,
                                 double* shares) {
  for (std::int64_t part = 0; part < problem.parts; ++part) {
    double* to = shares + part * kMergeRows;
    with_input_element<double>(problem.lses[part].element, [&](auto type) {
      using From = typename decltype(type)::Type;
      for (int row = 0; row < rows.count; ++row)
        to[row] = widen(*static_cast<const From*>(rows.lses[part * kMergeRows + row]));
    });
    for (int row = rows.count; row < kMergeRows; ++row) to[row] = 0.0;
  }
}

// Converts the parts' sums to their weights, in place, and computes the rows' sums.
REGARD_NOINLINE void share_out(std::int64_t parts, double* shares, double* sums) {
  using V = Vec<double>;
  const V one = broadcast(1.0), infinity = broadcast(kInfinity<double>);
  for (int lane = 0; lane < kMergeRows; lane += kLanes<double>) {
    double* const first = shares + lane;
    double* const end = first + parts * kMergeRows;
    V top = load(first);
    for (double* at = first; at < end; at += kMergeRows) {
      const V sum = load(at);
      top = select<double>((sum > top) | (sum != sum), sum, top);  // NaN stays NaN
    }
    const Mask<double> saw_no_key = top == -infinity;
    V total{};
    for (double* at = first; at < end; at += kMergeRows) {
      const V sum = load(at);
      // Equal infinities have a share of 1, although their difference is NaN.
      const V share = select<double>(sum == top, one, exp(sum - top));
      const Mask<double> saw_nothing = (sum == -infinity) & ~saw_no_key;
      total = total + select<double>(saw_nothing, V{}, share);
      store(at, select<double>(saw_nothing, broadcast(kLeftOut), share));
    }
    for (int i = 0; i < kLanes<double>; ++i)
      sums[lane + i] = total[i] == 1.0 ? top[i] : top[i] + __builtin_log2(total[i]) * kLn2;
    total = select<double>(saw_no_key, one, total);
    // If two sums are infinite, their shares are undetermined.
    total = select<double>((top == infinity) & (total > one), broadcast(__builtin_nan("")), total);
    for (double* at = first; at < end; at += kMergeRows) {
      const V share = load(at);
      store(at, select<double>(share < V{}, share, share / total));
    }
  }
}

// to = weight * from, or to += weight * from.
template <class T, class From>
REGARD_INLINE void add_weighed(T weight, const From* from, std::int64_t stride, int count,
                               bool is_first, T* to) {
  int i = 0;
  if (stride == 1)
    for (; i + kLanes<T> <= count; i += kLanes<T>) {
      const Vec<T> term = broadcast(weight) * load_as<T>(from + i);
      store(to + i, is_first ? term : load(to + i) + term);
    }
  for (; i < count; ++i) {
    const T term = weight * static_cast<T>(widen(from[i * stride]));
    to[i] = is_first ? term : to[i] + term;
  }
}

template <class T>
REGARD_NOINLINE void merge_row(const MergeProblem& problem, const MergeRows& rows, int row,
                               const double* shares) {
  // Sums are accumulated in the result's memory, unless its type is narrower.
  T wide[kMergePiece];
  const bool is_direct = is_stored_as<T>(problem.output.element);
  for (std::int64_t begin = 0; begin < problem.columns; begin += kMergePiece) {
    const std::int64_t left = problem.columns - begin;
    const int count = left < kMergePiece ? static_cast<int>(left) : kMergePiece;
    T* const sums = is_direct ? static_cast<T*>(rows.output[row]) + begin : wide;
    bool is_first = true;  // at least one part is always included
    for (std::int64_t part = 0; part < problem.parts; ++part) {
      const double weight = shares[part * kMergeRows + row];
      if (weight == kLeftOut) continue;
      const Operand& output = problem.outputs[part];
      const std::int64_t stride = output.column_stride;
      with_input_element<T>(output.element, [&](auto type) {
        using From = typename decltype(type)::Type;
        const From* from = static_cast<const From*>(rows.outputs[part * kMergeRows + row]);
        add_weighed(static_cast<T>(weight), from + begin * stride, stride, count, is_first, sums);
      });
      is_first = false;
    }
    if (is_direct) continue;
    with_result_element<T>(problem.output.element, [&](auto type) {
      using To = typename decltype(type)::Type;
      To* to = static_cast<To*>(rows.output[row]) + begin;
      int i = 0;
      for (; i + kLanes<T> <= count; i += kLanes<T>) store_as<T>(to + i, load(wide + i));
      for (; i < count; ++i) narrow(wide[i], to[i]);
    });
  }
}

template <class T>
REGARD_NOINLINE void merge_rows(const MergeProblem& problem, const MergeRows& rows,
                                double* shares) {
  double sums[kMergeRows];
  gather_sums(problem, rows, shares);
  share_out(problem.parts, shares, sums);
  for (int row = 0; row < rows.count; ++row) {
    if (problem.lse.element == Element::float64)
      *static_cast<double*>(rows.lse[row]) = sums[row];
    else
      *static_cast<float*>(rows.lse[row]) = static_cast<float>(sums[row]);
    merge_row<T>(problem, rows, row, shares);
  }
}

}  // namespace
}  // namespace regard
