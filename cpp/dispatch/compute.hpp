// What the dispatch computes in addition to attention (attention/plan.hpp), on the active target.
// `threads` is an upper bound. Unless stated otherwise, a function throws NoMemory before it writes
// anything, or Stopped.
#pragma once

#include <atomic>
#include <cstdint>

#include "../problem/backward.hpp"
#include "../problem/linear.hpp"
#include "../problem/matmul.hpp"
#include "../problem/rows.hpp"
#include "../problem/selection.hpp"
#include "../problem/summary.hpp"
#include "../problem/tangent.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's gradients.
void attention_gradients(const BackwardProblem& problem, int threads, const StopSignal& signal);

// Fills the problem's output, lse and their tangents.
void attention_tangent(const TangentProblem& problem, int threads, const StopSignal& signal);

// The number of rows of all heads, and the number of finished rows.
struct RowsDone {
  std::int64_t all;
  std::atomic<std::int64_t> done{0};
};
std::int64_t rows_of_all_heads(const SummaryProblem& problem);

// Fills the problem's results, and counts the rows.
void summarize_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

// Fills only the problem's map, likewise. The map has at most as many rows and columns as it shows
// queries and keys.
void map_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

// Fills the problem's selected keys.
void select_keys(const SelectionProblem& problem, int threads, const StopSignal& signal);

// Fills the problem's output and new state.
void attend_linearly(const LinearProblem& problem, int threads, const StopSignal& signal);

// Upper bound on its multiplications.
double work_of(const LinearProblem& problem);

// The multiplications of its gradients, relative to those of the forward call.
constexpr double kBackwardWork = 3;

// Fills the problem's gradients.
void linear_gradients(const LinearBackwardProblem& problem, int threads, const StopSignal& signal);

// Fills c.
void matrix_product(const MatmulProblem& problem, int threads, const StopSignal& signal);

// Fills the output of an elementwise stage, row by row.
void run_stage(const StageProblem& problem, int threads, const StopSignal& signal);

// Merges attention states over disjoint sets of keys: fills the problem's output and lse.
void merge_states(const MergeProblem& problem, int threads, const StopSignal& signal);

// Fills the problem's rows and scales; returns false if the type cannot represent a number.
bool quantize_rows(const QuantizeProblem& problem, int threads, const StopSignal& signal);

// Writes all new rows to the pages of a cache; signals do not stop it. Returns whether a finite
// number became infinite.
bool store_rows(const StoreProblem& problem, int threads);

// The limits of this machine, with which every benchmark is compared, the best of several tries:
// floating-point operations per second of threads that do nothing but fma, and bytes per second of
// threads that do nothing but read, each its share of `bytes`. The latter is the memory bandwidth if
// `bytes` far exceeds the size of the last-level cache; it must be at least kReadStep * threads.
double fma_peak(Scalar scalar, int threads, const StopSignal& signal);
double read_bandwidth(std::int64_t bytes, int threads, const StopSignal& signal);
constexpr std::int64_t kReadStep = 512;

}  // namespace regard
