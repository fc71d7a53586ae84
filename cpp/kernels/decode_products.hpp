// The two products of a decode, over keys and values as they lie (any element type, any row stride, in
// pages) or, where columns are apart or do not fill vectors, over copies.
#pragma once

#include "decode_ahead.hpp"
#include "decode_block.hpp"
#include "decode_weights.hpp"
#include "strip_setup.hpp"

namespace regard {
namespace {

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
        to[i] = static_cast<T>(widen(from[i * problem.query.column_stride]));
    });
    if (rotates_queries(problem)) rotate_row(to, problem.head_dim);
    for (std::int64_t i = 0; i < problem.head_dim; ++i) to[i] *= scale;
  }
}

// scores[row][key] of kLanes keys: squares of keys and dimensions, transposed in registers.
template <class T, int kRows, class From>
REGARD_NOINLINE void score_keys(const From* const* keys, std::int64_t padded_head_dim,
                                const T* queries, T* scores, std::ptrdiff_t score_stride,
                                Ahead& ahead) {
  constexpr int kAsked =
      kAheadOfScores<From> * kLanes<T> * kLanes<T> * static_cast<int>(sizeof(From)) / (4 * kLineBytes);
  Vec<T> acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kLanes<T>) {
    Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) square[i] = load_as<T>(keys[i] + d);
    transpose<T>(square);
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r] = fma(square[i], broadcast(queries[r * padded_head_dim + d + i]), acc[r]);
#pragma GCC unroll 8
      for (int n = kAsked * i / kLanes<T>; n < kAsked * (i + 1) / kLanes<T>; ++n) ahead.ask(asked);
    }
    ahead.stop(asked);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(scores + r * score_stride, acc[r]);
}

// A vector of keys of int8: their rows, scales and scores.
struct QuantizedKeys {
  const std::int8_t* rows[kLanes<float>];
  Vec<float> scale;
  float* scores;
};

// score_keys of int8, whose squares have four dimensions a lane. Two vectors of keys at a time: the sum
// of one would wait for itself.
template <int kRows>
REGARD_NOINLINE void score_quantized_keys(const QuantizedKeys (&keys)[2],
                                          std::int64_t head_dim, const float* queries,
                                          std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kWidth = kLanes<float>;
  constexpr int kQuartersAsked = kAheadOfScores<std::int8_t> * 2 * kWidth * 4 / kLineBytes;
  Vec<float> acc[2][kRows];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<float>{};
  for (std::int64_t d = 0; d < head_dim; d += 4 * kWidth) {
    Mask<float> dims[2][kWidth];
    for (int v = 0; v < 2; ++v) {
      Vec<float> square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i)
        square[i] = load(reinterpret_cast<const float*>(keys[v].rows[i] + d));
      transpose<float>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) dims[v][i] = as_bits<float>(square[i]);
    }
    AskedLine asked = ahead.go_on();
    for (int i = 0; i < kWidth; ++i) {
      ahead.ask_quarters<kQuartersAsked>(i, asked);
#pragma GCC unroll 4
      for (int byte = 0; byte < 4; ++byte) {
        const std::int64_t column = d + 4 * i + byte;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const Vec<float> stored =
              __builtin_convertvector(dims[v][i] << (24 - 8 * byte) >> 24, Vec<float>);
          const Vec<float> key = dequantize<float>(stored, keys[v].scale);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r)
            acc[v][r] = fma(key, broadcast(queries[r * head_dim + column]), acc[v][r]);
        }
      }
    }
    ahead.stop(asked);
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(keys[v].scores + r * score_stride, acc[v][r]);
}

template <class Shape, int kRows>
REGARD_NOINLINE void score_quantized_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                           const DecodeWorkspace<float>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  QuantizedKeys keys[2];
  int waiting = 0;
  const auto score = [&] {
    score_quantized_keys<kRows>(keys, work.padded_head_dim, work.queries, kBlock, ahead);
    waiting = 0;
  };
  for_steps<Shape>(steps, [&](int begin) {
    const auto* first = static_cast<const std::int8_t*>(block.keys[begin / kStep]);
    const float* scales = block.key_scales[begin / kStep];
    const int last = block.count - begin - 1;
    for (int k = 0; k < kStep; k += kLanes<float>) {
      QuantizedKeys& vector = keys[waiting++];
      vector.scores = work.scores + begin + k;
      for (int i = 0; i < kLanes<float>; ++i) {
        // Lanes beyond the block repeat its last key: they are hidden.
        const int row = k + i < last ? k + i : last;
        vector.rows[i] = first + row * block.key_stride;
        vector.scale[i] = scales[row];
      }
      if (waiting == 2) score();
    }
  });
  if (waiting == 1) {
    keys[1] = keys[0];
    score();
  }
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void score_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                 const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  for_rows(work.rows, [&](auto rows) {
    if constexpr (sizeof(T) == 4) {
      if (block.key_element == Element::int8) 
        return score_quantized_steps<Shape, rows.value>(block, steps, work, ahead);
    }
    with_input_element<T>(block.key_element, [&](auto element) {
      using From = typename decltype(element)::Type;
      for_steps<Shape>(steps, [&](int begin) {
        const From* first = static_cast<const From*>(block.keys[begin / kStep]);
        const int last = block.count - begin - 1;
        for (int k = 0; k < kStep; k += kLanes<T>) {
          // Lanes beyond the block repeat its last key: they are hidden.
          const From* keys[kLanes<T>];
          for (int i = 0; i < kLanes<T>; ++i)
            keys[i] = first + (k + i < last ? k + i : last) * block.key_stride;
          score_keys<T, rows.value>(keys, work.padded_head_dim, work.queries,
                                    work.scores + begin + k, kBlock, ahead);
        }
      });
    });
  });
}

template <class T, class From>
REGARD_INLINE Vec<T> load_value(const From* from, const float* scales, int row) {
  const Vec<T> stored = load_as<T>(from);
  if constexpr (sizeof(From) == 1) return dequantize<T>(stored, broadcast(static_cast<T>(scales[row])));
  return stored;
}

// output[row][panel] += the sum over the steps' keys of weight value, `panel` columns into their rows.
// Where kSelect, a key whose weight is exactly -0.0 (hidden) is left out instead of multiplied.
template <class Shape, int kRows, int kPanel, bool kSelect, class From, class T = typename Shape::Element>
REGARD_NOINLINE void add_panel(const DecodeBlock<Shape>& block, std::int64_t panel, int begin, int end,
                               std::uint32_t steps, const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  constexpr int kQuartersAsked =
      kAheadOfValues<From> * kPanel * kLanes<T> * static_cast<int>(sizeof(From)) / kLineBytes;
  const std::ptrdiff_t stride = block.value_stride;
  Vec<T> acc[kRows][kPanel];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanel; ++p) acc[r][p] = Vec<T>{};
  for_steps<Shape>(steps, [&](int step) {
    const From* values = static_cast<const From*>(block.values[step / kStep]) + panel;
    const float* scales = block.value_scales[step / kStep];
    const int first = begin > step ? begin - step : 0;
    const int last = step + kStep < end ? kStep : end - step;
    AskedLine asked = ahead.go_on();
    for (int k = first; k < last; ++k) {
      ahead.ask_quarters<kQuartersAsked>(k, asked);
      Vec<T> value[kPanel];
#pragma GCC unroll 4
      for (int p = 0; p < kPanel; ++p)
        value[p] = load_value<T>(values + k * stride + p * kLanes<T>, scales, k);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const T weight = work.scores[r * kBlock + step + k];
        if (kSelect && weight == T(0) && __builtin_signbit(weight)) continue;
#pragma GCC unroll 4
        for (int p = 0; p < kPanel; ++p) acc[r][p] = fma(value[p], broadcast(weight), acc[r][p]);
      }
    }
    ahead.stop(asked);
  });
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r >= work.rows) break;
#pragma GCC unroll 4
    for (int p = 0; p < kPanel; ++p) {
      T* to = work.output + r * work.padded_value_dim + panel + p * kLanes<T>;
      store(to, work.is_fresh ? acc[r][p] : load<T>(to) + acc[r][p]);
    }
  }
}

template <class Shape, class From, class T = typename Shape::Element>
REGARD_NOINLINE bool decode_values_are_finite(const DecodeBlock<Shape>& block, int begin, int end,
                                              std::int64_t columns) {
  constexpr int kStep = kDecodeStep<Shape>;
  Mask<T> bits{};
  for (int k = begin; k < end; ++k) {
    const From* values =
        static_cast<const From*>(block.values[k / kStep]) + k % kStep * block.value_stride;
    for (std::int64_t d = 0; d < columns; d += kLanes<T>) {
      const Vec<T> value = load_value<T>(values + d, block.value_scales[k / kStep], k % kStep);
      bits |= as_bits<T>(value - value);
    }
  }
  return !any<T>(bits != 0);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_decode_values(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                       std::int64_t key, DecodeWorkspace<T>& work, Ahead& ahead) {
  const int begin = static_cast<int>(clamp(work.seen.begin - key, 0, block.count));
  const int end = static_cast<int>(clamp(work.seen.end - key, 0, block.count));
  with_stored_element<T>(block.value_element, [&](auto element) {
    using From = typename decltype(element)::Type;
    const bool selects = work.hides && !decode_values_are_finite<Shape, From>(block, begin, end,
                                                                              work.padded_value_dim);
    for_rows(work.rows, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      constexpr int kAccumulators = Shape::kRegisterCount / 2;
      constexpr int kPanel = static_cast<int>(clamp(kAccumulators / kRows, 1, 4));
      const auto add = [&](auto panel, auto select, std::int64_t d) {
        add_panel<Shape, kRows, panel.value, select.value, From>(block, d, begin, end, steps, work, ahead);
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
