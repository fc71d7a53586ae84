// The two products of a decode, over keys and values as they lie (any element type, any row stride) or,
// where columns are apart or do not fill vectors, over copies.
#pragma once

#include "decode_weights.hpp"
#include "key_block.hpp"
#include "strip_setup.hpp"

namespace regard {
namespace {

// A block's keys and values where they are read.
template <class T>
struct DecodeBlock {
  int count;
  const void* keys;
  Element key_element;
  std::ptrdiff_t key_stride;
  const void* values;
  Element value_element;
  std::ptrdiff_t value_stride;
};

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Rows computed together: the rows at hand and, up to the next of these, rows of zeros.
template <class Body>
REGARD_INLINE void for_rows(int rows, Body body) {
  if (rows == 1) return body(Constant<1>{});
  if (rows == 2) return body(Constant<2>{});
  if (rows <= 4) return body(Constant<4>{});
  body(Constant<kDecodeRows>{});
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void pack_decode_queries(const AttentionProblem& problem, const AttentionTask& task,
                                         const DecodeWorkspace<T>& work) {
  const T scale = query_scale<T>(problem);
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (int row = 0; row < kDecodeRows; ++row) {
    T* to = work.queries + row * work.padded_head_dim;
    for (std::int64_t i = 0; i < work.padded_head_dim; ++i) to[i] = T(0);
    if (row >= work.rows) continue;
    const std::int64_t first = (task.row_begin + row) / group * problem.query.row_stride +
                               (task.row_begin + row) % group * problem.query.head_stride;
    with_input_element<T>(problem.query.element, [&](auto element) {
      using From = typename decltype(element)::Type;
      const From* from = static_cast<const From*>(task.query) + first;
      for (std::int64_t i = 0; i < problem.head_dim; ++i)
        to[i] = static_cast<T>(widen(from[i * problem.query.column_stride])) * scale;
    });
  }
}

template <class T>
REGARD_INLINE bool fills_vectors(const Operand& operand, std::int64_t columns) {
  return operand.column_stride == 1 && columns % kLanes<T> == 0;
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE DecodeBlock<T> decode_block(const AttentionProblem& problem, const AttentionTask& task,
                                            std::int64_t key, const DecodeWorkspace<T>& work) {
  const std::int64_t left = task.kv_len - key;
  DecodeBlock<T> block{};
  block.count = static_cast<int>(left < Shape::kBlockKeys ? left : Shape::kBlockKeys);
  constexpr Element kOwn = sizeof(T) == 4 ? Element::float32 : Element::float64;
  const auto place = [&](const Operand& operand, const void* data, std::int64_t columns, T* copy,
                         std::int64_t padded_columns, const void*& from, Element& element,
                         std::ptrdiff_t& stride) {
    if (fills_vectors<T>(operand, columns)) {
      from = row_at(operand, data, key);
      element = operand.element;
      stride = operand.row_stride;
      return;
    }
    copy_rows(operand, data, key, block.count, columns, copy, block.count, padded_columns);
    from = copy;
    element = kOwn;
    stride = padded_columns;
  };
  place(problem.key, task.key, problem.head_dim, work.keys, work.padded_head_dim, block.keys,
        block.key_element, block.key_stride);
  place(problem.value, task.value, problem.value_dim, work.values, work.padded_value_dim, block.values,
        block.value_element, block.value_stride);
  return block;
}

// scores[row][key] of kLanes keys: squares of keys and dimensions, transposed in registers.
template <class T, int kRows, class From>
REGARD_NOINLINE void score_keys(const From* const* keys, std::int64_t padded_head_dim,
                                const T* queries, T* scores, std::ptrdiff_t score_stride) {
  Vec<T> acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kLanes<T>) {
    Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) square[i] = load_as<T>(keys[i] + d);
    transpose<T>(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r] = fma(square[i], broadcast(queries[r * padded_head_dim + d + i]), acc[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(scores + r * score_stride, acc[r]);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void score_steps(const DecodeBlock<T>& block, std::uint32_t steps,
                                 const DecodeWorkspace<T>& work) {
  constexpr int kBlock = round_up(Shape::kBlockKeys, kDecodeStep<Shape>);
  with_input_element<T>(block.key_element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* first = static_cast<const From*>(block.keys);
    for_rows(work.rows, [&](auto rows) {
      for_steps<Shape>(steps, [&](int begin) {
        for (int k = begin; k < begin + kDecodeStep<Shape>; k += kLanes<T>) {
          // Lanes beyond the block repeat its last key: they are hidden.
          const From* keys[kLanes<T>];
          for (int i = 0; i < kLanes<T>; ++i)
            keys[i] = first + (k + i < block.count ? k + i : block.count - 1) * block.key_stride;
          score_keys<T, rows.value>(keys, work.padded_head_dim, work.queries, work.scores + k, kBlock);
        }
      });
    });
  });
}

// output[row][panel] += the sum over the steps' keys of weight value. Where kSelect, a key whose weight
// is exactly -0.0 (hidden) is left out instead of multiplied.
template <class Shape, int kRows, int kPanel, bool kSelect, class From, class T = typename Shape::Element>
REGARD_NOINLINE void add_panel(const From* values, std::ptrdiff_t stride, int begin, int end,
                               std::uint32_t steps, const T* weights, std::ptrdiff_t weight_stride,
                               T* output, std::int64_t output_stride, int rows, bool is_fresh) {
  Vec<T> acc[kRows][kPanel];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanel; ++p) acc[r][p] = Vec<T>{};
  for_steps<Shape>(steps, [&](int step) {
    const int first = step > begin ? step : begin;
    const int last = step + kDecodeStep<Shape> < end ? step + kDecodeStep<Shape> : end;
    for (int k = first; k < last; ++k) {
      Vec<T> value[kPanel];
#pragma GCC unroll 4
      for (int p = 0; p < kPanel; ++p) value[p] = load_as<T>(values + k * stride + p * kLanes<T>);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const T weight = weights[r * weight_stride + k];
        if (kSelect && weight == T(0) && __builtin_signbit(weight)) continue;
#pragma GCC unroll 4
        for (int p = 0; p < kPanel; ++p) acc[r][p] = fma(value[p], broadcast(weight), acc[r][p]);
      }
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 4
    for (int p = 0; p < kPanel; ++p) {
      T* to = output + r * output_stride + p * kLanes<T>;
      store(to, is_fresh ? acc[r][p] : load<T>(to) + acc[r][p]);
    }
  }
}

template <class Shape, class From, class T = typename Shape::Element>
REGARD_NOINLINE bool decode_values_are_finite(const From* values, std::ptrdiff_t stride, int begin,
                                              int end, std::int64_t columns) {
  Mask<T> bits{};
  for (int k = begin; k < end; ++k)
    for (std::int64_t d = 0; d < columns; d += kLanes<T>) {
      const Vec<T> value = load_as<T>(values + k * stride + d);
      bits |= as_bits<T>(value - value);
    }
  return !any<T>(bits != 0);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_decode_values(const DecodeBlock<T>& block, std::uint32_t steps,
                                       std::int64_t key, DecodeWorkspace<T>& work) {
  constexpr int kBlock = round_up(Shape::kBlockKeys, kDecodeStep<Shape>);
  const int begin = static_cast<int>(clamp(work.seen.begin - key, 0, block.count));
  const int end = static_cast<int>(clamp(work.seen.end - key, 0, block.count));
  with_input_element<T>(block.value_element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const From* values = static_cast<const From*>(block.values);
    const bool selects = work.hides && !decode_values_are_finite<Shape>(
                                           values, block.value_stride, begin, end, work.padded_value_dim);
    for_rows(work.rows, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      constexpr int kAccumulators = Shape::kRegisterCount / 2;
      constexpr int kPanel = static_cast<int>(clamp(kAccumulators / kRows, 1, 4));
      const auto add = [&](auto panel, auto select, std::int64_t d) {
        add_panel<Shape, kRows, panel.value, select.value>(
            values + d, block.value_stride, begin, end, steps, work.scores, kBlock, work.output + d,
            work.padded_value_dim, work.rows, work.is_fresh);
      };
      const auto add_all = [&](auto select) {
        std::int64_t d = 0;
        for (; d + kPanel * kLanes<T> <= work.padded_value_dim; d += kPanel * kLanes<T>)
          add(Constant<kPanel>{}, select, d);
        for (; d < work.padded_value_dim; d += kLanes<T>) add(Constant<1>{}, select, d);
      };
      if (selects)
        add_all(Constant<1>{});
      else
        add_all(Constant<0>{});
    });
  });
  work.is_fresh = false;
}

}  // namespace
}  // namespace regard
