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
template <int kRows, class From>
struct ValueTile {
  static constexpr bool kIsNarrow = DecodeShape::kRegisterCount == 16;
  static constexpr bool kAreHalves = kIsFloat16<From> || kIsFloat8<From>;
  static constexpr int kTogether = kIsNarrow && kRows > 4 ? 4 : kRows;
  static constexpr bool kIsSingle =
      kTogether == 1 && (sizeof(From) > 1 || (kIsNarrow && kAreHalves));
  static constexpr int kPanel = kIsSingle        ? 8
                                : kTogether < 4  ? 4
                                : kIsNarrow      ? 3
                                : kTogether == 4 ? 4
                                                 : 2;
};

// output[row][panel] += the sum over the steps' keys of weight value, starting at column `panel`,
// for kTogether of kRows rows. With kSelect, a key whose weight is exactly -0.0 (hidden) is skipped
// instead of multiplied.
template <int kRows, int kTogether, int kPanel, bool kSelect, class From>
REGARD_NOINLINE void add_panel(const DecodeBlock& block, int row, std::int64_t panel, int begin,
                               int end, std::uint32_t steps, const DecodeWorkspace& work,
                               Ahead& ahead) {
  constexpr int kAhead = kAheadOfValues<kPutsRowsInLanes<kRows, From>>;
  constexpr int kQuartersOfRows = kAhead * kPanel * kWidth * static_cast<int>(sizeof(From));
  constexpr int kQuartersAsked =
      (kQuartersOfRows * kTogether / kRows + kLineBytes - 1) / kLineBytes;
  const std::ptrdiff_t stride = block.values.stride;
  const float* weights = work.scores + row * kDecodeBlock;
  Vec<float> acc[kTogether][kPanel];
#pragma GCC unroll 8
  for (int r = 0; r < kTogether; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < kPanel; ++p) acc[r][p] = Vec<float>{};
  for_steps(steps, [&](int step) {
    const From* values = static_cast<const From*>(block.values.first[step / kDecodeStep]) + panel;
    const int first = begin > step ? begin - step : 0;
    const int last = step + kDecodeStep < end ? kDecodeStep : end - step;
    AskedLine asked = ahead.go_on();
    for (int k = first; k < last; ++k) {
      ahead.ask_quarters<kQuartersAsked>(k, asked);
      Vec<float> value[kPanel];
      load_all_as<float>(values + k * stride, value);
#pragma GCC unroll 8
      for (int r = 0; r < kTogether; ++r) {
        const float weight = weights[r * kDecodeBlock + step + k];
        if (kSelect && weight == 0.0f && __builtin_signbit(weight)) continue;
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
      float* to = work.output + (row + r) * work.padded_value_dim + panel + p * kWidth;
      store(to, work.is_fresh ? acc[r][p] : load<float>(to) + acc[r][p]);
    }
  }
}

// Calls `body` with a number of vectors as a Constant, and the column at which they begin: panels
// of kPanel vectors, and smaller panels at the end. No panel has one vector if two panels of two
// vectors are possible instead.
template <int kPanel, class Body>
REGARD_INLINE void for_panels(std::int64_t columns, Body body) {
  std::int64_t d = 0;
  const auto vectors_left = [&] { return (columns - d) / kWidth; };
  while (vectors_left() >= kPanel && (kPanel != 3 || vectors_left() != 4)) {
    body(Constant<kPanel>{}, d);
    d += kPanel * kWidth;
  }
  if constexpr (kPanel > 4) {
    if (vectors_left() >= 4) {
      body(Constant<4>{}, d);
      d += 4 * kWidth;
    }
  }
  if constexpr (kPanel > 2) {
    while (vectors_left() >= 2) {
      body(Constant<2>{}, d);
      d += 2 * kWidth;
    }
  }
  if constexpr (kPanel > 1) {
    if (vectors_left() > 0) body(Constant<1>{}, d);
  }
}

REGARD_NOINLINE void add_decode_values(const DecodeBlock& block, DecodeWorkspace& work,
                                       Ahead& ahead) {
  const std::uint32_t steps = block.steps;
  const int begin = static_cast<int>(block.seen.begin), end = static_cast<int>(block.seen.end);
  with_block_element(block.values.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    if constexpr (kIsNibbles<From>) {
      for_rows(work.rows, [&](auto rows) {
        add_nibble_values<decltype(rows)::value>(block, begin, end, steps, work, ahead);
      });
    } else {
      bool selects = false;
      if constexpr (sizeof(From) > 1)  // bytes are finite
        for_steps(work.hides ? steps : 0, [&](int step) {
          const int first = begin > step ? begin - step : 0;
          const int last = step + kDecodeStep < end ? kDecodeStep : end - step;
          const auto* const values =
              static_cast<const From*>(block.values.first[step / kDecodeStep]);
          const std::ptrdiff_t stride = block.values.stride;
          selects |= !rows_are_finite(values + first * stride, stride, last - first,
                                      work.padded_value_dim);
        });
      for_rows(work.rows, [&](auto rows) {
        constexpr int kRows = decltype(rows)::value;
        using Tile = ValueTile<kRows, From>;
        const auto add = [&](auto panel, auto select, std::int64_t d) {
          for (int row = 0; row < kRows; row += Tile::kTogether)
            add_panel<kRows, Tile::kTogether, panel.value, select.value, From>(
                block, row, d, begin, end, steps, work, ahead);
        };
        if constexpr (sizeof(From) > 1)
          if (selects)
            return for_panels<1>(work.padded_value_dim,
                                 [&](auto panel, std::int64_t d) { add(panel, Constant<1>{}, d); });
        for_panels<Tile::kPanel>(work.padded_value_dim,
                                 [&](auto panel, std::int64_t d) { add(panel, Constant<0>{}, d); });
      });
    }
  });
  work.is_fresh = false;
}

}  // namespace
}  // namespace regard
