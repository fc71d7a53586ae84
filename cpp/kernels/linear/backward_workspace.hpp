// The memory of a task of the gradients of linear attention (backward.hpp).
#pragma once

#include "products.hpp"

namespace regard {
namespace {

template <class Shape>
struct LinearBackwardWorkspace {
  using T = typename Shape::Element;
  using Chunk = LinearWorkspace<Shape>;
  static constexpr std::int64_t kScores = Chunk::kScores;

  Chunk chunk;                              // without columns of values
  Rows<T> keys, x, decayed;                 // [kChunk]
  Rows<T> grad_x, grad_keys;                // [kChunk]
  Rows<T> grad_own;                         // [kChunk]: of keys, from the queries of their tokens
  Rows<T> grad_ends, grad_sums;             // [kChunk]
  Rows<T> scores, grad_scores;              // [kChunk]; `scores` of queries
  Rows<T> given;                            // [kChunk]: the gradients of the rows' results
  Rows<T> results, updates;                 // [kChunk]: N and U
  Rows<T> grad_updates, grad_values;        // [kChunk]
  Rows<T> turned_updates;                   // [value_dim][kScores]
  Rows<T> turned_state, turned_grad_state;  // [value_dim]
  Rows<T> grad_state;                       // [head_dim]
  Rows<T> states;                           // [chunks][head_dim]
  T* sums;                                  // [stride]: of gradients of decays
  T* own_scores;                            // [kChunk]: gradients
  T* sums_of_parts;                         // [kParts][kChunk][stride]
  Rows<T> turned_scores;                    // [kChunk][kScores]
  Rows<T> products;                         // [head_dim][kScores]
  std::int64_t state_rows;
  std::int64_t bytes;

  LinearBackwardWorkspace(const LinearProblem& problem, void* memory) : chunk(problem, 0, memory) {
    const std::int64_t dims = chunk.stride, columns = Chunk::stride_of(problem.value_dim);
    const std::int64_t parts = problem.decays_by_column ? kParts : 0;
    state_rows = round_up(problem.head_dim, Shape::kRows);
    const std::int64_t value_rows = round_up(problem.value_dim, Shape::kRows);
    const std::int64_t chunks = (problem.q_len + kChunk - 1) / kChunk;
    const struct {
      Rows<T>* rows;
      std::int64_t count;
      std::int64_t stride;
    } arrays[] = {
        {&keys, kChunk, dims},
        {&x, kChunk, dims},
        {&grad_x, kChunk, dims},
        {&grad_keys, kChunk, dims},
        {&grad_own, kChunk, dims},
        {&grad_ends, kChunk, dims},
        {&grad_sums, kChunk, dims},
        {&grad_scores, kChunk, kScores},
        {&given, kChunk, columns},
        {&results, kChunk, columns},
        {&updates, kChunk, columns},
        {&grad_updates, kChunk, columns},
        {&grad_values, kChunk, columns},
        {&turned_updates, value_rows, kScores},
        {&turned_state, value_rows, dims},
        {&turned_grad_state, value_rows, dims},
        {&grad_state, state_rows, columns},
        {&states, state_rows * (chunks > 0 ? chunks : 1), columns},
        {&turned_scores, parts * kPart, kScores},
        {&products, parts ? state_rows : 0, kScores},
    };
    Arena arena(memory);
    arena.take<char>(chunk.bytes);
    for (const auto& each : arrays)
      *each.rows = {arena.take<T>(each.count * each.stride), each.stride};
    sums = arena.take<T>(dims);
    own_scores = arena.take<T>(kChunk);
    sums_of_parts = arena.take<T>(parts * kChunk * dims);
    decayed = {chunk.rows, dims};
    scores = {chunk.weights, kScores};
    bytes = arena.used();
  }
};

}  // namespace
}  // namespace regard
