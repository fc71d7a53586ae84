// output += weights value for the rows of a decode: values are read in place or copied, as keys
// are.
#pragma once

#include "../ahead.hpp"
#include "decode_block.hpp"
#include "nibble_values.hpp"
#include "rows_in_lanes.hpp"
#include "weights.hpp"

namespace regard {
namespace {

// A tile of the products with values: rows x vectors of dimensions. Its sums stay in registers,
// together with the current values and one weight. An fma takes four or five cycles and two can
// start in each cycle, so a tile should have ten sums or more.
template <class Shape, int kRows, class From>
struct ValueTile {
  static constexpr bool kIsNarrow = Shape::kRegisterCount == 16;
  static constexpr bool kAreHalves = kIsFloat16<From> || kIsFloat8<From>;
  static constexpr int kTogether = kIsNarrow && kRows > 4 ? 4 : kRows;
  static constexpr int kPanel = kIsNarrow && kAreHalves && kTogether == 1 ? 8
                                : kTogether < 4                           ? 4
                                : kIsNarrow                               ? 3
                                : kTogether == 4                          ? 4
                                                                          : 2;
};

// output[row][panel] += the sum over the steps' keys of weight value, starting at column `panel`,
// for kTogether of kRows rows. With kSelect, a key whose weight is exactly -0.0 (hidden) is skipped
// instead of multiplied.
template <class Shape, int kRows, int kTogether, int kPanel, bool kSelect, class From,
          class T = typename Shape::Element>
REGARD_NOINLINE void add_panel(const DecodeBlock<Shape>& block, int row, std::int64_t panel,
                               int begin, int end, std::uint32_t steps,
                               const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  constexpr int kAhead = kAheadOfValues<kPutsRowsInLanes<Shape, kRows, From>>;
  constexpr int kQuartersOfRows = kAhead * kPanel * kLanes<T> * static_cast<int>(sizeof(From));
  constexpr int kQuartersAsked =
      (kQuartersOfRows * kTogether / kRows + kLineBytes - 1) / kLineBytes;
  const std::ptrdiff_t stride = block.value_stride;
  const T* weights = work.scores + row * kBlock;
  Vec<T> acc[kTogether][kPanel];
#pragma GCC unroll 8
  for (int r = 0; r < kTogether; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < kPanel; ++p) acc[r][p] = Vec<T>{};
  for_steps<Shape>(steps, [&](int step) {
    const From* values = static_cast<const From*>(block.values[step / kStep]) + panel;
    const int first = begin > step ? begin - step : 0;
    const int last = step + kStep < end ? kStep : end - step;
    AskedLine asked = ahead.go_on();
    for (int k = first; k < last; ++k) {
      ahead.ask_quarters<kQuartersAsked>(k, asked);
      Vec<T> value[kPanel];
      load_all_as<T>(values + k * stride, value);
#pragma GCC unroll 8
      for (int r = 0; r < kTogether; ++r) {
        const T weight = weights[r * kBlock + step + k];
        if (kSelect && weight == T(0) && __builtin_signbit(weight)) continue;
#pragma GCC unroll 8
        for (int p = 0; p < kPanel; ++p) acc[r][p] = fma(value[p], broadcast(weight), acc[r][p]);
      }
    }
    ahead.stop(asked);
  });
#pragma GCC unroll 8
  for (int r = 0; r < kTogether; ++r) {
    if (row + r >= work.rows) break;
#pragma GCC unroll 8
    for (int p = 0; p < kPanel; ++p) {
      T* to = work.output + (row + r) * work.padded_value_dim + panel + p * kLanes<T>;
      store(to, work.is_fresh ? acc[r][p] : load<T>(to) + acc[r][p]);
    }
  }
}

// Calls `body` with a number of vectors as a Constant, and the column at which they begin: panels
// of kPanel vectors, and smaller panels at the end. No panel has one vector if two panels of two
// vectors are possible instead.
template <int kPanel, class T, class Body>
REGARD_INLINE void for_panels(std::int64_t columns, Body body) {
  std::int64_t d = 0;
  const auto vectors_left = [&] { return (columns - d) / kLanes<T>; };
  while (vectors_left() >= kPanel && (kPanel != 3 || vectors_left() != 4)) {
    body(Constant<kPanel>{}, d);
    d += kPanel * kLanes<T>;
  }
  if constexpr (kPanel > 2) {
    while (vectors_left() >= 2) {
      body(Constant<2>{}, d);
      d += 2 * kLanes<T>;
    }
  }
  if constexpr (kPanel > 1) {
    if (vectors_left() > 0) body(Constant<1>{}, d);
  }
}

template <class Shape, class From, class T = typename Shape::Element>
REGARD_NOINLINE bool decode_values_are_finite(const DecodeBlock<Shape>& block, int begin, int end,
                                              std::uint32_t steps, std::int64_t columns) {
  constexpr int kStep = kDecodeStep<Shape>;
  Mask<T> bits{};
  for_steps<Shape>(steps, [&](int step) {
    const From* values = static_cast<const From*>(block.values[step / kStep]);
    for (int k = begin > step ? begin - step : 0; k < kStep && step + k < end; ++k)
      for (std::int64_t d = 0; d < columns; d += kLanes<T>) {
        const Vec<T> value = load_as<T>(values + k * block.value_stride + d);
        bits |= as_bits<T>(value - value);
      }
  });
  return !any<T>(bits != 0);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_decode_values(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                       std::int64_t key, DecodeWorkspace<T>& work, Ahead& ahead) {
  const KeyInterval seen = seen_of_block(work.seen, key, block.count);
  const int begin = static_cast<int>(seen.begin), end = static_cast<int>(seen.end);
  with_block_element<T>(block.value_element, [&](auto element) {
    using From = typename decltype(element)::Type;
    if constexpr (kIsNibbles<From>) {
      if constexpr (sizeof(T) == 4)
        for_rows(work.rows, [&](auto rows) {
          add_nibble_values<Shape, decltype(rows)::value>(block, begin, end, steps, work, ahead);
        });
      return;
    } else {
      bool selects = false;
      if constexpr (sizeof(From) > 1)  // bytes are finite
        selects = work.hides && !decode_values_are_finite<Shape, From>(block, begin, end, steps,
                                                                       work.padded_value_dim);
      for_rows(work.rows, [&](auto rows) {
        constexpr int kRows = decltype(rows)::value;
        using Tile = ValueTile<Shape, kRows, From>;
        const auto add = [&](auto panel, auto select, std::int64_t d) {
          for (int row = 0; row < kRows; row += Tile::kTogether)
            add_panel<Shape, kRows, Tile::kTogether, panel.value, select.value, From>(
                block, row, d, begin, end, steps, work, ahead);
        };
        if constexpr (sizeof(From) > 1)
          if (selects)
            return for_panels<1, T>(work.padded_value_dim, [&](auto panel, std::int64_t d) {
              add(panel, Constant<1>{}, d);
            });
        for_panels<Tile::kPanel, T>(work.padded_value_dim, [&](auto panel, std::int64_t d) {
          add(panel, Constant<0>{}, d);
        });
      });
    }
  });
  work.is_fresh = false;
}

}  // namespace
}  // namespace regard
