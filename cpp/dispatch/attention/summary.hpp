// What is to be known of attention's weights.
#pragma once

#include <atomic>
#include <cstdint>

#include "../../problem/summary.hpp"
#include "../threads/parallel_for.hpp"

namespace regard {

// How many rows of all heads there are, and how many of them are done.
struct RowsDone {
  std::int64_t all;
  std::atomic<std::int64_t> done{0};
};
std::int64_t rows_of_all_heads(const SummaryProblem& problem);

// Fills the problem's results, and counts the rows. `threads` is an upper bound. Throws NoMemory before anything is written, or Stopped.
void summarize_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

// Fills only the problem's map, likewise. Its rows and columns are at most those of the queries and keys that it shows.
void map_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

}  // namespace regard
