#include "compute.hpp"

#include <algorithm>
#include <atomic>

#include "batch_index.hpp"
#include "split.hpp"
#include "targets.hpp"
#include "threads/parallel_for.hpp"

namespace regard {
namespace {

char* row_of(const RowArray& array, std::int64_t outer, std::int64_t head, std::int64_t row) {
  const std::int64_t elements =
      outer * array.outer_stride + head * array.head_stride + row * array.row_stride;
  return static_cast<char*>(array.data) + elements * size_of(array.element);
}

// Stores the rows from `begin` to `end` of one head, page by page: in a single step if rows have no
// gaps.
bool store_head(const StoreProblem& problem, std::int64_t entry, std::int64_t head, std::int64_t begin,
                std::int64_t end) {
  const Kernels& kernels = kernels_for(active_target(), Scalar::float32);
  const RowArray &from = problem.from, &to = problem.to;
  const bool has_gaps = from.row_stride != problem.columns || to.row_stride != problem.columns;
  const std::int32_t* pages = problem.pages + entry * problem.pages_stride;
  const std::int64_t start = problem.starts[entry];
  const std::int64_t outer = problem.packed ? 0 : entry, before = problem.packed ? problem.packed[entry] : 0;
  bool overflows = false;
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t page = (start + row) / problem.page_rows, at = (start + row) % problem.page_rows;
    const std::int64_t rows = std::min(end - row, has_gaps ? 1 : problem.page_rows - at);
    overflows |= kernels.rows.convert(from.element, to.element, row_of(from, outer, head, before + row),
                                     row_of(to, pages[page], head, at), rows * problem.columns);
    row += rows;
  }
  return overflows;
}

}  // namespace

bool store_rows(const StoreProblem& problem, int threads) {
  constexpr std::int64_t kElementsPerTask = 64 * 1024;  // enough to amortize waking a thread
  if (problem.most_rows == 0) return false;
  // A task is a piece of a head, or several heads.
  const std::int64_t columns = std::max<std::int64_t>(problem.columns, 1);
  const std::int64_t piece = std::max<std::int64_t>(1, kElementsPerTask / columns);
  const std::int64_t pieces = ceil_div(problem.most_rows, piece);
  const std::int64_t units = problem.entries * problem.heads * pieces;
  const std::int64_t units_per_task =
      std::max<std::int64_t>(1, piece / std::min(problem.most_rows, piece));
  const std::int64_t tasks = ceil_div(units, units_per_task);
  threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, std::max(threads, 1)));
  std::atomic<bool> overflows{false};
  parallel_for(threads, tasks, StopSignal{}, [&](std::int64_t task, Worker&) {
    const std::int64_t stop = std::min(units, (task + 1) * units_per_task);
    for (std::int64_t unit = task * units_per_task; unit < stop; ++unit) {
      const std::int64_t entry = unit / pieces / problem.heads, begin = unit % pieces * piece;
      const std::int64_t end = std::min(problem.counts[entry], begin + piece);
      if (store_head(problem, entry, unit / pieces % problem.heads, begin, end)) overflows = true;
    }
  });
  return overflows;
}

}  // namespace regard
