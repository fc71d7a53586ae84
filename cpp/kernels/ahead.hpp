// Prefetches the next block's lines one by one while this block is computed.
//
// Where few rows see a key, as in a decode and in a narrow window, the kernel waits for memory, and
// the processor looks only a few hundred instructions ahead: without requests it alternates between
// reading and computing. If lines are asked for evenly and in order, they arrive all the time. A
// core can have only a few of them under way, and a request beyond these holds up the loads that
// compute: hence the numbers below (docs/lab-notes.md).
#pragma once

#include "kv_rows.hpp"

namespace regard {
namespace {

// How many lines a decode asks for while scores read four lines of keys, while outputs read four
// lines of values, and while the weights between the two are computed. Where rows lie in lanes,
// scores take about as long as outputs.
template <bool kRowsInLanes>
constexpr int kAheadOfScores = kRowsInLanes ? 4 : 5;
template <bool kRowsInLanes>
constexpr int kAheadOfValues = 8 - kAheadOfScores<kRowsInLanes>;
constexpr int kAheadOfWeights = 24;
// How many a forward kernel asks for while it computes a tile: as many as the tile's weights fill.
// So they are in proportion to what a tile computes.
template <class Shape>
constexpr int kAheadOfTile = Shape::kRows * Shape::kVectors * kVectorBytes / kLineBytes;

// What the loops hold in registers meanwhile.
struct AskedLine {
  const char* line;
  std::ptrdiff_t step;  // to the next line
  std::int64_t left;    // lines of this row, this one included
};

class Ahead {
 public:
  Ahead() {
    runs_[0] = end();
    start();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  // Adds `count` rows from the row `first` on, which are read where they lie.
  void add(const KvRows& rows, std::int64_t first, std::int64_t count, std::int64_t columns) {
    const std::int64_t bytes = bytes_of(rows.operand.element);
    for_runs(rows, first, count, [&](auto done, auto together, auto page, auto) {
      if (page < 0) return;
      const std::int64_t row = first + done;
      // Scales of float8 are one number for a head.
      const std::int64_t scales = rows.scale_operand.row_stride;
      if (rows.scales && scales != 0) add_run(scales_at(rows, row), 0, together * scales * 4, 1);
      const std::int64_t row_bytes =
          rows.operand.element == Element::q4_1 ? columns / 2 : columns * bytes;
      add_run(row_at(rows, row), rows.operand.row_stride * bytes, row_bytes, together);
    });
  }

  // Hands out the place to ask at, and takes it back after a number of calls of `ask`.
  AskedLine go_on() const { return at_; }
  void stop(AskedLine at) { at_ = at; }

  __attribute__((always_inline)) void ask(AskedLine& at) {
    __builtin_prefetch(at.line, 0, 2);
    at.line += at.step;
    if (__builtin_expect(--at.left > 0, true)) return;
    if (--rows_ > 0) {
      at.line += run_->gap;
    } else {
      ++run_;
      rows_ = run_->rows;
      at.line = run_->first;
      at.step = run_->step;
    }
    at.left = run_->lines_of_row;
  }

  // Asks for kQuarters quarters of a line on average over four turns, which loops count in integers
  // of their own type.
  template <int kQuarters, class Turn>
  __attribute__((always_inline)) void ask_quarters(Turn turn, AskedLine& at) {
#pragma GCC unroll 8
    for (int n = 0; n < kQuarters / 4; ++n) ask(at);
    if (turn % 4 < kQuarters % 4) ask(at);
  }

  void ask_lines(int count) {
    AskedLine at = go_on();
    for (int i = 0; i < count; ++i) ask(at);
    stop(at);
  }

 private:
  struct Run {
    const char* first;
    std::ptrdiff_t step;
    std::ptrdiff_t gap;  // from the end of a row to the next
    std::int64_t lines_of_row;
    std::int64_t rows;
  };

  void add_run(const void* first, std::ptrdiff_t stride, std::int64_t row_bytes,
               std::int64_t rows) {
    if (run_count_ == kMostRuns) return;
    if (stride == row_bytes) {
      row_bytes *= rows;
      rows = 1;
    }
    const std::int64_t lines = (row_bytes + kLineBytes - 1) / kLineBytes;
    runs_[run_count_++] = {static_cast<const char*>(first), kLineBytes, stride - lines * kLineBytes,
                           lines, rows};
    runs_[run_count_] = end();
    start();
  }

  // Follows the last run. It names a line that exists, since the processor would look for any other
  // in the page tables every time.
  Run end() const { return {reinterpret_cast<const char*>(this), 0, 0, INT64_MAX, INT64_MAX}; }

  void start() {
    run_ = runs_;
    rows_ = run_->rows;
    at_ = {run_->first, run_->step, run_->lines_of_row};
  }

  AskedLine at_;
  const Run* run_;
  std::int64_t rows_;  // of the run at hand, yet to be asked for
  int run_count_ = 0;
  // A block's keys and values have few runs in large pages, and some hundreds in pages of one row.
  // Of more than this, the last ones are not asked for: a larger frame costs decodes of int8 4%.
  static constexpr int kMostRuns = 60;
  Run runs_[kMostRuns + 1];
};

}  // namespace
}  // namespace regard
