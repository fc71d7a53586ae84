// Statistics and maps of the attention weights.
#pragma once

#include <atomic>
#include <cstdint>

#include "../../problem/summary.hpp"
#include "../threads/parallel_for.hpp"

namespace regard {

// The number of rows of all heads, and the number of finished rows.
struct RowsDone {
  std::int64_t all;
  std::atomic<std::int64_t> done{0};
};
std::int64_t rows_of_all_heads(const SummaryProblem& problem);

// Fills the problem's results, and counts the rows. `threads` is an upper bound. Throws NoMemory
// before it writes anything, or Stopped.
void summarize_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

// Fills only the problem's map, likewise. The map has at most as many rows and columns as it shows
// queries and keys.
void map_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

}  // namespace regard
