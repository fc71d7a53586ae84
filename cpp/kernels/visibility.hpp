// Which keys of a block a strip sees, as one of three answers for every tile.
//
// Positions (causal) and the end of the array give intervals, known per strip before any key is
// read. A bool mask is read where a tile needs it, once a lane; a float mask is brought into lanes
// for a whole block. Both end as `bias`, one mechanism for everything that hides: 0 and -inf, or the
// float mask's own values. A bias of 0 leaves a score's bits alone.
#pragma once

#include "online_softmax.hpp"
#include "pack.hpp"

namespace regard {
namespace {

enum class TileKind {
  visible,   // to every lane
  hidden,    // from every lane
  biased,    // see bias
};

template <class T>
struct KeyBlock {
  std::int64_t begin;  // position of its first key; a multiple of kBlockKeys
  int count;
  const T* keys;
  std::ptrdiff_t key_stride;
  const T* tail_keys;  // the last tile where count is no whole number of tiles, padded
  const T* values;
  std::ptrdiff_t value_stride;
};

// A lane's row of the mask, from the block's first key on.
template <class M, class T>
REGARD_INLINE const M* mask_row(const AttentionProblem& problem, const AttentionTask& task,
                                const Strip<T>& strip, int lane, std::int64_t key) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  const std::int64_t row = strip.first_row + lane;
  return static_cast<const M*>(task.mask) + row / group * problem.mask.row_stride +
         row % group * problem.mask.head_stride + key * problem.mask.column_stride;
}

// One mask row serves every lane: a mask over keys alone, such as padding.
REGARD_INLINE bool lanes_share_a_mask_row(const AttentionProblem& problem) {
  return problem.mask.row_stride == 0 &&
         (problem.mask.head_stride == 0 || problem.heads == problem.kv_heads);
}

// A mask's value in log2 units; a finite one whose product overflows stays the farthest finite number.
template <class T>
REGARD_INLINE Vec<T> to_log2_units(Vec<T> value) {
  const Vec<T> largest = broadcast(kLargest<T>);
  const Vec<T> scaled = value * broadcast(static_cast<T>(kLog2E));
  const Vec<T> above_lowest =
      select<T>((scaled < -largest) & (value >= -largest), -largest, scaled);
  return select<T>((scaled > largest) & (value <= largest), largest, above_lowest);
}

// bias[key][lane] of the block's first `keys` keys.
template <class T, class M, int kVectors>
REGARD_NOINLINE void float_mask_bias(const AttentionProblem& problem, const AttentionTask& task,
                                     const Strip<T>& strip, std::int64_t block_begin, int keys,
                                     T* bias) {
  constexpr int kWidth = kVectors * kLanes<T>;
  const std::int64_t stride = problem.mask.column_stride;
  if (lanes_share_a_mask_row(problem)) {
    const M* row = mask_row<M>(problem, task, strip, 0, block_begin);
    for (int k = 0; k < keys; ++k) {
      const Vec<T> value = to_log2_units<T>(broadcast(mask_value<T>(row[k * stride])));
      for (int v = 0; v < kVectors; ++v) store(bias + k * kWidth + v * kLanes<T>, value);
    }
    return;
  }
  const M* rows[kWidth];
  for (int lane = 0; lane < strip.rows; ++lane)
    rows[lane] = mask_row<M>(problem, task, strip, lane, block_begin);
  if constexpr (sizeof(M) == sizeof(T)) {
    rows_to_lanes(rows, strip.rows, stride, keys, bias, kWidth,
                  [](Vec<T> value) { return to_log2_units<T>(value); });
  } else {
    for (int k = 0; k < keys; ++k)
      for (int v = 0; v < kVectors; ++v) {
        Vec<T> gathered{};
        for (int i = 0; i < kLanes<T> && v * kLanes<T> + i < strip.rows; ++i)
          gathered[i] = mask_value<T>(rows[v * kLanes<T> + i][k * stride]);
        store(bias + k * kWidth + v * kLanes<T>, to_log2_units<T>(gathered));
      }
  }
}

// bias[row][lane] of one tile from a bool mask, and whether all, none or some of it is visible.
template <class T, int kRows, int kVectors>
REGARD_NOINLINE TileKind bool_mask_bias(const AttentionProblem& problem,
                                        const AttentionTask& task, const Strip<T>& strip,
                                        std::int64_t key, int keys, T* bias) {
  constexpr int kWidth = kVectors * kLanes<T>;
  const std::int64_t stride = problem.mask.column_stride;
  const int lanes = lanes_share_a_mask_row(problem) ? 1 : strip.rows;
  unsigned char visible[kWidth][kRows];
  int count = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    const unsigned char* row = mask_row<unsigned char>(problem, task, strip, lane, key);
    for (int r = 0; r < keys; ++r) {
      visible[lane][r] = row[r * stride] != 0;
      count += visible[lane][r];
    }
  }
  if (count == lanes * keys) return TileKind::visible;
  if (count == 0) return TileKind::hidden;
  for (int r = 0; r < keys; ++r)
    for (int lane = 0; lane < kWidth; ++lane)
      bias[r * kWidth + lane] =
          lane >= strip.rows || visible[lanes == 1 ? 0 : lane][r] ? T(0) : -kInfinity<T>;
  return TileKind::biased;
}

// Hides, in one tile's bias, what lies after a lane's position or beyond the array.
template <class T, int kRows, int kVectors>
REGARD_NOINLINE void hide_by_position(const AttentionProblem& problem, const Strip<T>& strip,
                                      std::int64_t key, bool bias_is_set, T* bias) {
  constexpr int kWidth = kVectors * kLanes<T>;
  const std::int64_t present = problem.kv_len - key;
  for (int lane = 0; lane < kWidth; ++lane) {
    std::int64_t seen = problem.is_causal ? strip.positions[lane] - key + 1 : kRows;
    if (seen > present) seen = present;
    const int limit = seen < 0 ? 0 : seen > kRows ? kRows : static_cast<int>(seen);
    for (int r = 0; r < kRows; ++r) {
      T& value = bias[r * kWidth + lane];
      if (r >= limit)
        value = -kInfinity<T>;
      else if (!bias_is_set)
        value = T(0);
    }
  }
}

template <class T, int kRows, int kVectors>
REGARD_INLINE TileKind tile_kind(const AttentionProblem& problem, const AttentionTask& task,
                                 const Strip<T>& strip, const KeyBlock<T>& block, int tile_begin,
                                 T* tile_bias) {
  const std::int64_t key = block.begin + tile_begin;
  const int keys = block.count - tile_begin < kRows ? block.count - tile_begin : kRows;
  TileKind kind = TileKind::visible;
  if (problem.mask_kind == MaskKind::boolean)
    kind = bool_mask_bias<T, kRows, kVectors>(problem, task, strip, key, keys, tile_bias);
  else if (problem.mask_kind != MaskKind::none)
    kind = TileKind::biased;
  const bool is_edge = keys < kRows || key + kRows > strip.full_end;
  if (is_edge && kind != TileKind::hidden) {
    hide_by_position<T, kRows, kVectors>(problem, strip, key, kind != TileKind::visible,
                                         tile_bias);
    kind = TileKind::biased;
  }
  return kind;
}

}  // namespace
}  // namespace regard
