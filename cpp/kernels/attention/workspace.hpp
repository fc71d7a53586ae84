// What one thread keeps while it works on one task: strips of queries with their running results,
// and one block's weights. Its size depends on head_dim and value_dim, and on whether there is more than one
// chunk of keys, but not on how many.
#pragma once

#include "../../problem/attention.hpp"
#include "../../simd/vec.hpp"

namespace regard {
namespace {

// The tile sizes of one element type on one target. Registers of a tile: kRows x kVectors
// accumulators, kVectors of the right operand, one broadcast.
template <class T, int kRows_, int kVectors_, int kRegisters>
struct TileShape {
  using Element = T;
  static constexpr int kRows = kRows_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kRegisterCount = kRegisters;
  static constexpr int kStripLanes = kVectors * kLanes<T>;
  // Keys whose weights are kept between the two products. A row's sum over keys is made block by
  // block, so this is part of what decides its bits; 64 to 128 measure alike (docs/performance.md).
  static constexpr int kBlockKeys = 96;
  // Keys whose softmax stands alone before it is joined with that of the keys before (join.hpp).
  static constexpr int kChunkKeys = 16 * kBlockKeys;
  // Rows share one pass over a block of keys: as many as make strips of about this size, queries and
  // outputs together, which leaves L2 room for the block. That cuts the traffic from beyond L2, and
  // what it costs to copy a block, by the number of rows: 384 at head_dim 64, 192 at 128.
  static constexpr std::int64_t kTaskBytes = 192 * 1024;
  static constexpr std::int64_t kMostTaskRows = 16 * kStripLanes;
  // Where a mask has rows of its own, no strip crosses a multiple of this many rows: masks made of
  // blocks have blocks of 64 or 128, and a strip across two of them computes what either sees.
  static constexpr std::int64_t kMaskRows = 128;
  static_assert(kMaskRows % kLanes<T> == 0, "a chunk of rows is a whole number of vectors");

  static_assert(kRows * kVectors + kVectors + 1 <= kRegisters, "the tile does not fit in registers");
  static_assert(kBlockKeys % kRows == 0, "a block is a whole number of tiles");
  static_assert(kRows == 4 || kRows == 8, "a tile's keys are a word of bool mask (mask_tiles.hpp)");
};

// What a lane's online softmax has seen, see online_softmax.hpp.
template <class T>
struct SoftmaxState {
  T* reference;
  T* limit;  // the score from which the reference moves
  T* sum;
};

template <class T>
struct Strip {
  std::int64_t first_row;  // among the kv head's, as in AttentionTask
  int rows;                // lanes in use
  int vectors;             // lanes / kLanes<T>
  bool is_fresh;             // no block has written to output yet
  // By position (window, causality, the array's end): keys outside `seen` are hidden from every
  // lane, keys inside `shared` from none.
  SeenKeys seen;
  SeenKeys shared;
  KeyInterval sink_tokens;  // each lane sees them up to its end_key
  T* queries;              // [head_dim][lanes], times scale log2(e)
  // Where precision is int8 (int8_queries.hpp): each lane's factor of its query; null otherwise.
  T* query_scale;
  T* mean_score;  // there: its score of what was taken from all keys, their mean
  T* output;               // [padded value_dim][lanes], relative to the reference
  SoftmaxState<T> state;
  T* block_sum;
  // The chunks before this one, joined; null where there is one chunk and no sink.
  SoftmaxState<T> total;
  T* total_output;
  bool total_is_fresh;  // nothing has been written to total_output yet
  T* reciprocal;  // of the sum, in the end
  // Each lane's query among the keys: its position and the keys that it sees by position.
  std::int64_t* positions;
  std::int64_t* first_key;
  std::int64_t* end_key;
  T* slopes;  // of ALiBi, in log2 units; null where there is none
};

template <class T>
struct Workspace {
  Strip<T>* strips;
  int strip_count;
  T softcap;       // the largest score, in log2 units; 0 where scores are not capped
  T* weights;      // [block keys][lanes]: the block's weights of the strip at work
  T* bias;         // [block keys][lanes]: what is added to the block's scores, in log2 units
  T* keys;         // [block keys][head_dim]: a block that cannot be read in place
  T* tail_keys;    // [tile rows][head_dim]: the last keys of an array, padded to a tile
  T* values;       // [block keys][padded value_dim]
  T* key_scales;   // [block keys], of rows of int8, as are value_scales; null otherwise
  T* value_scales;
};

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;

// The cap as arithmetic in T can hold it, 0 for none. One beyond the largest scores changes none; under
// the smallest of these all weights are equal to the last bit, whatever the scores.
template <class T>
REGARD_INLINE double softcap_of(const AttentionProblem& problem) {
  constexpr double kMost = sizeof(T) == 4 ? 1e37 : 1e307, kLeast = sizeof(T) == 4 ? 1e-20 : 1e-200;
  if (problem.softcap > kMost) return 0;
  return problem.softcap != 0 && problem.softcap < kLeast ? kLeast : problem.softcap;
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class Shape>
REGARD_INLINE bool merges_chunks(const AttentionProblem& problem) {
  return problem.sinks || problem.kv_len > Shape::kChunkKeys;
}

// Tasks begin at multiples of so many rows, and no strip crosses one.
template <class Shape>
REGARD_INLINE std::int64_t row_unit(const AttentionProblem& problem) {
  const auto has_rows = [](const Operand& mask) { return mask.data && mask.row_stride != 0; };
  return has_rows(problem.mask) || has_rows(problem.bias) ? Shape::kMaskRows : Shape::kStripLanes;
}

// Lays a Workspace out in `memory`, itself first. Returns its size in bytes, which is all that
// happens where memory is null.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out(const AttentionProblem& problem, std::int64_t task_rows,
                                     char* memory) {
  std::int64_t used = round_up(static_cast<std::int64_t>(sizeof(Workspace<T>)), 64);
  const auto take = [&](std::int64_t bytes) {
    char* start = memory ? memory + used : nullptr;
    used = round_up(used + bytes, 64);
    return start;
  };
  const auto take_elements = [&](std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  };
  const auto take_state = [&](std::int64_t lanes) {
    return SoftmaxState<T>{take_elements(lanes), take_elements(lanes), take_elements(lanes)};
  };
  const std::int64_t padded_value_dim = round_up(problem.value_dim, Shape::kRows);

  Workspace<T> work{};
  work.softcap = static_cast<T>(softcap_of<T>(problem) * kLog2E);
  const std::int64_t unit = row_unit<Shape>(problem);
  const int strips_of_unit = static_cast<int>(unit + Shape::kStripLanes - 1) / Shape::kStripLanes;
  work.strips = reinterpret_cast<Strip<T>*>(take((task_rows + unit - 1) / unit * strips_of_unit *
                                                 static_cast<std::int64_t>(sizeof(Strip<T>))));
  int strips_left = 0, vectors_left = 0;  // of the unit
  for (std::int64_t row = 0; row < task_rows;) {
    if (strips_left == 0) {
      strips_left = strips_of_unit;
      vectors_left = static_cast<int>(unit) / kLanes<T>;
    }
    const int vectors = (vectors_left + strips_left - 1) / strips_left;
    const std::int64_t left = task_rows - row;
    Strip<T> strip{};
    strip.first_row = row;
    strip.rows = left < vectors * kLanes<T> ? static_cast<int>(left) : vectors * kLanes<T>;
    strip.vectors = (strip.rows + kLanes<T> - 1) / kLanes<T>;
    const std::int64_t lanes = strip.vectors * kLanes<T>;
    row += lanes;
    vectors_left -= vectors;
    --strips_left;
    strip.queries = take_elements(problem.head_dim * lanes);
    if (problem.precision == Precision::int8) {
      strip.query_scale = take_elements(lanes);
      strip.mean_score = take_elements(lanes);
    }
    strip.output = take_elements(padded_value_dim * lanes);
    strip.state = take_state(lanes);
    strip.block_sum = take_elements(lanes);
    if (merges_chunks<Shape>(problem)) {
      strip.total = take_state(lanes);
      strip.total_output = take_elements(padded_value_dim * lanes);
    }
    strip.reciprocal = take_elements(lanes);
    strip.positions = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    strip.first_key = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    strip.end_key = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    if (problem.alibi_slopes.data) strip.slopes = take_elements(lanes);
    if (memory) work.strips[work.strip_count] = strip;
    ++work.strip_count;
  }
  const std::int64_t lanes =
      round_up(task_rows < Shape::kStripLanes ? task_rows : Shape::kStripLanes, kLanes<T>);
  const std::int64_t block_keys =
      round_up(problem.kv_len < Shape::kBlockKeys ? problem.kv_len : Shape::kBlockKeys,
               Shape::kRows);
  work.weights = take_elements(block_keys * lanes);
  work.bias = take_elements(block_keys * lanes);
  work.keys = take_elements(block_keys * problem.head_dim);
  work.tail_keys = take_elements(Shape::kRows * problem.head_dim);
  work.values = take_elements(block_keys * padded_value_dim);
  if (problem.key.element == Element::int8) {
    work.key_scales = take_elements(block_keys);
    work.value_scales = take_elements(block_keys);
  }
  if (memory) *reinterpret_cast<Workspace<T>*>(memory) = work;
  return used;
}

}  // namespace
}  // namespace regard
