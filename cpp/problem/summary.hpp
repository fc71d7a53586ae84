// The arguments of a call for statistics of attention weights as plain data, including the
// attention call that they belong to. The weights themselves are not returned.
#pragma once

#include "attention.hpp"

namespace regard {

// Downsampled weights of some queries and keys. The pixel in row i and column j covers all queries
// from the start of row i to the start of the next row, and all keys from the start of column j to
// the start of the next column, evenly spaced.
enum class Pooling { largest, sum, mean };

struct AttentionMap {
  Operand pixels;  // rows are rows of the image; data is null if not wanted
  std::int64_t height;
  std::int64_t width;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t key_begin;
  std::int64_t key_end;
  Pooling pooling;
  std::int64_t task_height;  // maximum number of image rows in a task
};

// One number per row.
enum RowStatistic {
  kEntropy,
  kLargest,
  kEffectiveCount,  // the square of the weights' sum over the sum of their squares
  kMeanDistance,
  kFirstMass,  // sum of the weights of the first first_keys keys
  kLocalMass,  // sum of the weights of keys within local_reach of the query's position
  kPrevious,   // the weight of the key before the query's position; 0 if there is none
  kInduced,    // the weight of the key given by induction_keys; 0 if there is none
  kRowStatistics
};

// Data of a result is null if it is not wanted.
struct SummaryProblem {
  AttentionProblem forward;  // lse is an input; values and outputs are not used

  Operand statistics[kRowStatistics];
  std::int64_t first_keys;
  std::int64_t local_reach;
  Operand induction_keys;  // one 64-bit integer per row, -1 for none

  // The largest weights of each row in descending order, and their keys as 64-bit integers:
  // top_count columns.
  Operand top_weights;
  Operand top_keys;
  std::int64_t top_count;

  // Sums over queries; rows are keys. `column_means` is divided by the number of queries that see a
  // key.
  Operand column_sums;
  Operand column_means;

  AttentionMap map;
};

// Some queries of one query head.
struct SummaryTask {
  AttentionTask forward;  // all pointers refer to this head
  void* statistics[kRowStatistics];
  const std::int64_t* induction_keys;
  void* top_weights;
  std::int64_t* top_keys;
  // Sums over the task's queries and the earlier queries in the same part of the head, [kv_len]
  // each; null if not wanted.
  double* column_sums;
  double* column_counts;
  // Some rows of the map, starting at `map_row`, if the task has the queries of these rows; null
  // otherwise.
  void* pixels;
  std::int64_t map_row;
  std::int64_t map_rows;
};

}  // namespace regard
