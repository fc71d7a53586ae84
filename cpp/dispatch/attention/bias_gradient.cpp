#include "bias_gradient.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "../split.hpp"

namespace regard {
namespace {

// Where a bias has rows of its own, one thread takes at least this many of them.
constexpr std::int64_t kLeastRows = 192;

// All that is added to some elements of the bias, in this order: one thread does it, so that the order is the same for
// any number of them.
struct BiasPart {
  const std::vector<std::int64_t>* heads;
  std::int64_t row_begin;
  std::int64_t row_end;
};

}  // namespace

void add_bias_gradient(const BackwardHeads& heads, const BackwardKernels& kernels, int threads, std::int64_t interval,
                       const Scratch& scratch, const StopSignal& signal) {
  const BackwardProblem& problem = heads.problem();
  if (heads.count() == 0 || problem.forward.heads == 0) return;
  // Heads that add to the same rows of the bias begin at the same element.
  std::map<void*, std::vector<std::int64_t>> sharing;
  for (std::int64_t head = 0; head < heads.count(); ++head) sharing[heads.at(head).grad_bias].push_back(head);

  const bool has_rows = problem.grad_bias.row_stride != 0;
  // Parts are whole strips, and whole queries: heads of a query may share a row of the bias.
  const std::int64_t whole = std::lcm(kernels.strip_rows, problem.forward.heads / problem.forward.kv_heads);
  const std::int64_t part_rows = ceil_div(kLeastRows, whole) * whole;
  std::vector<BiasPart> parts;
  for (const auto& [first, same] : sharing) {
    std::int64_t rows = 0;
    for (const std::int64_t head : same) rows = std::max(rows, heads.at(head).forward.row_end);
    const std::int64_t step = has_rows ? part_rows : std::max<std::int64_t>(rows, 1);
    for (std::int64_t row = 0; row < rows; row += step) parts.push_back({&same, row, row + step});
  }

  const std::int64_t piece = kernels.piece_keys(problem);
  parallel_for(threads, static_cast<std::int64_t>(parts.size()), signal, [&](std::int64_t index, Worker& worker) {
    const BiasPart& part = parts[static_cast<std::size_t>(index)];
    for (const std::int64_t head : *part.heads) {
      const BackwardTask task = heads.at(head);
      const std::int64_t end = std::min(part.row_end, task.forward.row_end);
      for (std::int64_t key = 0; key < task.forward.kv_len; key += piece) {
        kernels.begin(problem, task, {key, std::min(task.forward.kv_len, key + piece)}, scratch.of(worker));
        for (std::int64_t row = part.row_begin; row < end && !worker.should_stop(); row += interval)
          kernels.add_to_bias(problem, task, row, std::min(end, row + interval), scratch.of(worker));
      }
    }
  });
}

}  // namespace regard
