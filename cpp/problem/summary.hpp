// What a caller asks to know of attention's weights without having them, as plain data, with the attention that they
// belong to.
#pragma once

#include "attention.hpp"

namespace regard {

// The weights of some queries and keys, made smaller: the pixel in row i and column j holds all rows and keys from where
// i and j begin to where the next begin, evenly spaced.
enum class Pooling { largest, sum, mean };

struct AttentionMap {
  Operand pixels;  // rows are those of the picture; data is null where it is not wanted
  std::int64_t height;
  std::int64_t width;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t key_begin;
  std::int64_t key_end;
  Pooling pooling;
  std::int64_t task_height;  // how many of its rows a task has at most
};

// Data of a result is null where it is not wanted.
struct SummaryProblem {
  AttentionProblem forward;  // lse is given; values and outputs take no part

  // One number a row.
  Operand entropy;
  Operand largest;
  Operand effective_count;  // the square of the weights' sum over the sum of their squares
  Operand mean_distance;
  Operand first_mass;   // on the first first_keys keys
  Operand local_mass;  // on keys up to local_reach before or after the query's position
  Operand previous;    // the weight of the key before the query's position; 0 where there is none
  Operand induced;     // the weight of the key that induction_keys names; 0 where there is none
  std::int64_t first_keys;
  std::int64_t local_reach;
  Operand induction_keys;  // one 64-bit integer a row, -1 for none

  // The largest weights of each row in falling order, and their keys as 64-bit integers: top_count columns.
  Operand top_weights;
  Operand top_keys;
  std::int64_t top_count;

  // Sums over queries: rows are keys. `column_means` divides by the number of queries that see a key.
  Operand column_sums;
  Operand column_means;

  AttentionMap map;
};

// Some queries of one query head.
struct SummaryTask {
  AttentionTask forward;  // all pointers are of this head
  void* entropy;
  void* largest;
  void* effective_count;
  void* mean_distance;
  void* first_mass;
  void* local_mass;
  void* previous;
  void* induced;
  const std::int64_t* induction_keys;
  void* top_weights;
  std::int64_t* top_keys;
  // Of the task's queries and those before it in the same part of the head, [kv_len] each; null where not wanted.
  double* column_sums;
  double* column_counts;
  // Some rows of the map, from `map_row` on, where the task has the queries of these rows; null otherwise.
  void* pixels;
  std::int64_t map_row;
  std::int64_t map_rows;
};

}  // namespace regard
