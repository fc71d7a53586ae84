// What one thread keeps while it works on one piece of keys: these with their gradients, and one strip of queries
// with its own. Its size depends on head_dim and value_dim, but not on the lengths.
#pragma once

#include "../../problem/backward.hpp"
#include "../attention/visibility.hpp"

namespace regard {
namespace {

// Keys, values and their gradients take at most about this much: they stay in L2 while strips go by. Processors with
// AVX-512 mostly have 1 MB of it or more, others 512 KB.
constexpr std::int64_t kPieceBytes = (kVectorBytes == 64 ? 640 : 384) * 1024;
// An entry's keys make 1, 2, 4 or kMostChunks chunks of nearly the same size, so that two or four threads share one head
// evenly; twice as many only where each would still have more than this many keys.
constexpr std::int64_t kLeastChunkKeys = 192;
constexpr std::int64_t kMostChunks = 8;
constexpr std::int64_t kChunkUnit = 32;  // whole tiles, and whole counters of dropout

template <class T>
struct RowsOfStrip {
  const T* from;
  std::ptrdiff_t stride;
  int are_finite;  // -1 until asked for
};

template <class T>
struct BackwardWorkspace {
  KeyInterval piece;
  // Rows of the piece: where they lie, or copied and padded.
  const T* keys;
  const T* values;
  std::ptrdiff_t key_stride;
  std::ptrdiff_t value_stride;
  T* copied_keys;    // [piece keys][padded head_dim]
  T* copied_values;  // [piece keys][padded value_dim]
  T* grad_keys;      // the same, without the factor `scale`
  T* grad_values;

  StripRows<T> strip;
  T softcap;               // the largest score, in log2 units; 0 where scores are not capped
  T* queries;              // [head_dim][lanes], times query_scale
  T* grad_outputs;         // [value_dim][lanes]
  // The strip's rows: where they lie, or copied and padded.
  RowsOfStrip<T> query_rows;
  RowsOfStrip<T> grad_output_rows;
  T* copied_query_rows;        // [lanes][padded head_dim]
  T* copied_grad_output_rows;  // [lanes][padded value_dim]
  T* copied_output_rows;       // likewise
  T* lse;                  // [lanes], in log2 units
  T* delta;                // [lanes]: D
  T* grad_queries;  // [padded head_dim][lanes], without the factor `scale`; then [lanes] of slope_terms
  bool is_fresh;    // grad_queries holds nothing yet

  // Of a block of keys, [block keys][lanes].
  T* weights;       // P, then after dropout
  T* grad_scores;   // dS
  T* bias;          // what is added to its scores, in log2 units
  T* cap_factors;   // 1 - (score / softcap)^2; null where scores are not capped
};

// Of rows whose columns are read in whole vectors, and in whole tiles of columns.
template <class Shape>
constexpr std::int64_t padded_dim(std::int64_t dim) {
  constexpr int kWidth = kLanes<typename Shape::Element>;
  return round_up(dim, kWidth > Shape::kRows ? kWidth : Shape::kRows);
}

template <class Shape>
REGARD_INLINE std::int64_t piece_keys(const BackwardProblem& problem) {
  const AttentionProblem& forward = problem.forward;
  const std::int64_t bytes_of_key = 2 * (padded_dim<Shape>(forward.head_dim) + padded_dim<Shape>(forward.value_dim)) *
                                    static_cast<std::int64_t>(sizeof(typename Shape::Element));
  const std::int64_t blocks = kPieceBytes / bytes_of_key / Shape::kBlockKeys;
  const std::int64_t most = (forward.kv_len + Shape::kBlockKeys - 1) / Shape::kBlockKeys;
  return clamp(blocks, 1, most > 1 ? most : 1) * Shape::kBlockKeys;
}

// The elements of a strip's gradients of queries and slopes, a lane.
template <class Shape>
REGARD_INLINE std::int64_t partial_rows(const BackwardProblem& problem) {
  return padded_dim<Shape>(problem.forward.head_dim) + 1;
}

// Lays a BackwardWorkspace out in `memory`, itself first. Returns its size in bytes, which is all that happens
// where memory is null.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_backward(const BackwardProblem& problem, char* memory) {
  const AttentionProblem& forward = problem.forward;
  constexpr std::int64_t kMostLanes = Shape::kStripLanes;
  std::int64_t used = round_up(static_cast<std::int64_t>(sizeof(BackwardWorkspace<T>)), 64);
  const auto take = [&](std::int64_t bytes) {
    char* start = memory ? memory + used : nullptr;
    used = round_up(used + bytes, 64);
    return start;
  };
  const auto take_elements = [&](std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  };
  const auto take_integers = [&] { return reinterpret_cast<std::int64_t*>(take(kMostLanes * 8)); };
  const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
  const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
  const std::int64_t keys = piece_keys<Shape>(problem);

  BackwardWorkspace<T> work{};
  work.softcap = static_cast<T>(softcap_of<T>(forward) * kLog2E);
  work.copied_keys = take_elements(keys * head_dim);
  work.copied_values = take_elements(keys * value_dim);
  work.grad_keys = take_elements(keys * head_dim);
  work.grad_values = take_elements(keys * value_dim);
  work.queries = take_elements(head_dim * kMostLanes);
  work.grad_outputs = take_elements(value_dim * kMostLanes);
  work.copied_query_rows = take_elements(kMostLanes * head_dim);
  work.copied_grad_output_rows = take_elements(kMostLanes * value_dim);
  work.copied_output_rows = take_elements(kMostLanes * value_dim);
  work.lse = take_elements(kMostLanes);
  work.delta = take_elements(kMostLanes);
  work.grad_queries = take_elements(partial_rows<Shape>(problem) * kMostLanes);
  work.weights = take_elements(Shape::kBlockKeys * kMostLanes);
  work.grad_scores = take_elements(Shape::kBlockKeys * kMostLanes);
  work.bias = take_elements(Shape::kBlockKeys * kMostLanes);
  if (work.softcap != 0) work.cap_factors = take_elements(Shape::kBlockKeys * kMostLanes);
  work.strip.positions = take_integers();
  work.strip.first_key = take_integers();
  work.strip.end_key = take_integers();
  if (forward.alibi_slopes.data) work.strip.slopes = take_elements(kMostLanes);
  if (memory) *reinterpret_cast<BackwardWorkspace<T>*>(memory) = work;
  return used;
}

}  // namespace
}  // namespace regard
