#include "bias_gradient.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "../split.hpp"

namespace regard {
namespace {

// Number of parts for each thread, as long as each part has at least kLeastRows rows.
constexpr std::int64_t kPartsPerThread = 4;
constexpr std::int64_t kLeastRows = 192;

// Everything that is added to some elements of the bias, in this order. A single thread adds it, so
// that the order does not depend on the number of threads.
struct BiasPart {
  const std::vector<std::int64_t>* heads;
  KeyInterval keys;
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

  // Parts are pieces of keys, so that keys and values are loaded into the cache once for all rows.
  // If there are too few pieces, rows are divided too. Axes along which elements are broadcast are
  // not divided.
  const bool divides_keys = problem.grad_bias.column_stride != 0, divides_rows = problem.grad_bias.row_stride != 0;
  // An element that all rows and keys share is summed piece by piece, with pieces that do not
  // depend on L2.
  const std::int64_t piece = divides_keys || divides_rows ? kernels.piece_keys(problem) : kernels.block_keys;
  const std::int64_t kv_len = problem.forward.kv_len;
  const std::int64_t pieces = divides_keys ? ceil_div(kv_len, piece) : 1;
  // Parts consist of whole bands and whole queries: heads of a query may share a row of the bias.
  const std::int64_t whole = std::lcm(kernels.band_rows, problem.forward.heads / problem.forward.kv_heads);
  const std::int64_t wanted =
      ceil_div(kPartsPerThread * threads, static_cast<std::int64_t>(sharing.size()) * std::max<std::int64_t>(pieces, 1));
  std::vector<BiasPart> parts;
  for (const auto& [first, same] : sharing) {
    std::int64_t rows = 0;
    for (const std::int64_t head : same) rows = std::max(rows, heads.at(head).forward.row_end);
    const std::int64_t step = divides_rows ? ceil_div(std::max(ceil_div(rows, wanted), kLeastRows), whole) * whole
                                           : std::max<std::int64_t>(rows, 1);
    for (std::int64_t row = 0; row < rows; row += step)
      for (std::int64_t i = 0; i < pieces; ++i)
        parts.push_back({&same, {i * piece, divides_keys ? (i + 1) * piece : kv_len}, row, row + step});
  }

  parallel_for(threads, static_cast<std::int64_t>(parts.size()), signal, [&](std::int64_t index, Worker& worker) {
    const BiasPart& part = parts[static_cast<std::size_t>(index)];
    for (const std::int64_t head : *part.heads) {
      const BackwardTask task = heads.at(head);
      const std::int64_t row_end = std::min(part.row_end, task.forward.row_end);
      const std::int64_t key_end = std::min(part.keys.end, task.forward.kv_len);
      for (std::int64_t key = part.keys.begin; key < key_end; key += piece) {
        kernels.begin(problem, task, {key, std::min(key_end, key + piece)}, scratch.of(worker));
        for (std::int64_t row = part.row_begin; row < row_end && !worker.should_stop(); row += interval)
          kernels.add_to_bias(problem, task, row, std::min(row_end, row + interval), scratch.of(worker));
      }
    }
  });
}

}  // namespace regard
