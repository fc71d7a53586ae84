// Prefetches the next block's lines one by one while this block is computed.
//
// If few rows see a key, as in a decode or in a narrow window, the kernel waits for memory: without
// prefetching, the processor alternates between reading and computing. A core can have only a few
// prefetches in flight, and more of them delay the loads of the computation. This limit determines
// the numbers below (docs/lab-notes.md).
#pragma once

#include "kv_rows.hpp"

namespace regard {
namespace {

// Number of lines that a decode prefetches while scores read four lines of keys, while outputs read
// four lines of values, and while the weights in between are computed. If rows are in lanes, scores
// take about as long as outputs.
template <bool kRowsInLanes>
constexpr int kAheadOfScores = kRowsInLanes ? 4 : 5;
template <bool kRowsInLanes>
constexpr int kAheadOfValues = 8 - kAheadOfScores<kRowsInLanes>;
constexpr int kAheadOfWeights = 24;
// The distance at which `stop` waits: a page of the system, 64 lines.
constexpr std::ptrdiff_t kBytesInFlight = 4096;
// Number of lines that a forward kernel prefetches while it computes a tile: the number of lines
// that the tile's weights occupy. Prefetching is thus proportional to the work of a tile.
template <class Shape>
constexpr int kAheadOfTile = Shape::kRows * Shape::kVectors * kVectorBytes / kLineBytes;

// The prefetch position, which loops keep in registers.
struct AskedLine {
  const char* line;
  std::ptrdiff_t step;  // to the next line
  std::int64_t left;    // lines left in this row, including this line
};

class Ahead {
 public:
  Ahead() {
    runs_[0] = end();
    start();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  // Adds `count` rows starting at row `first`, which are read in place.
  void add(const KvRows& rows, std::int64_t first, std::int64_t count, std::int64_t columns) {
    const std::int64_t bytes = bytes_of(rows.operand.element);
    for_runs(rows, first, count, [&](auto done, auto together, auto page, auto) {
      if (page < 0) return;
      const std::int64_t row = first + done;
      // float8 has one scale per head.
      const std::int64_t scales = rows.scale_operand.row_stride;
      if (rows.scales && scales != 0) add_run(scales_at(rows, row), 0, together * scales * 4, 1);
      const std::int64_t row_bytes =
          rows.operand.element == Element::q4_1 ? columns / 2 : columns * bytes;
      add_run(row_at(rows, row), rows.operand.row_stride * bytes, row_bytes, together);
    });
  }

  // `go_on` returns the current prefetch position, and `stop` stores it again after some calls of
  // `ask`.
  AskedLine go_on() const { return at_; }
  // A processor may ignore prefetches if many of them are waiting, or if it does not know the
  // address of their page. It then waits for each of these lines later. So this loads a line of the
  // row that was prefetched some time ago: nothing more is prefetched before that one has arrived.
  __attribute__((always_inline)) void stop(AskedLine at) {
    at_ = at;
    const char* const earlier = at.line - kBytesInFlight;
    const void* const loaded = earlier >= row_ ? static_cast<const void*>(earlier) : this;
    (void)*static_cast<const volatile char*>(loaded);
  }

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
    row_ = at.line;
    at.left = run_->lines_of_row;
  }

  // Prefetches kQuarters quarters of a line per turn, averaged over four turns. Loops count turns
  // in integers of any type.
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

  // Sentinel after the last run. It points to a valid line, because the processor would search the
  // page tables for an invalid address at every prefetch.
  Run end() const { return {reinterpret_cast<const char*>(this), 0, 0, INT64_MAX, INT64_MAX}; }

  void start() {
    run_ = runs_;
    rows_ = run_->rows;
    row_ = run_->first;
    at_ = {run_->first, run_->step, run_->lines_of_row};
  }

  AskedLine at_;
  const char* row_;  // that is being prefetched
  const Run* run_;
  std::int64_t rows_;  // of the current run, not yet prefetched
  int run_count_ = 0;
  // A block's keys and values have few runs if pages are large, and several hundred if a page holds
  // one row. Runs beyond this number are not prefetched: a larger frame slows int8 decodes by 4%.
  static constexpr int kMostRuns = 60;
  Run runs_[kMostRuns + 1];
};

}  // namespace
}  // namespace regard
