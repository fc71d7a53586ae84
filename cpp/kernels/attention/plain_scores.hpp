// A tile's scores as the product of keys and queries in the scalar's own precision.
// ../int8/scores.hpp has the others.
#pragma once

#include "key_block.hpp"
#include "../micro_kernel.hpp"
#include "strip_setup.hpp"

namespace regard {
namespace {

template <class Shape>
struct PlainScores {
  using T = typename Shape::Element;
  // A tile's keys beside the strip's queries.
  struct Tile {
    const T* keys;
    std::ptrdiff_t key_stride;
    const T* key_scales;
    const Strip<T>& strip;
    std::int64_t head_dim;

    // For kVectors of the strip's kStripVectors, from its lane `lane` on.
    template <int kRows, int kVectors, int kStripVectors>
    REGARD_MEMBER void multiply(Accumulators<T, kRows, kVectors>& acc, int lane) const {
      clear<T, kRows, kVectors>(acc);
      multiply_rows<T, kRows, kVectors>(acc, keys, key_stride, strip.queries + lane,
                                        kStripVectors * kLanes<T>, head_dim);
      if (__builtin_expect(key_scales == nullptr, true)) return;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          acc[r][v] = acc[r][v] * broadcast(key_scales[r]);
    }
  };

  static bool copies_keys(const AttentionProblem& problem) {
    return !reads_in_place<T>(problem.key);
  }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const Strip<T>& strip) {
    regard::pack_queries<Shape>(problem, task, strip);
  }

  REGARD_INLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                  const Workspace<T>& work, KeyBlock<T>& block) {
    regard::provide_keys<T, Shape::kRows>(problem, task, work, block);
  }

  // The tile from the block's key `k` on, all of whose keys exist.
  REGARD_INLINE Tile whole_tile(const AttentionProblem& problem, const AttentionTask&,
                                const Strip<T>& strip, const KeyBlock<T>& block, std::int64_t k) {
    return {block.keys + k * block.key_stride, block.key_stride, scales_of(block, k), strip,
            problem.head_dim};
  }

  // One that may be the array's last.
  REGARD_INLINE Tile tile(const AttentionProblem& problem, const AttentionTask& task,
                          const Strip<T>& strip, const KeyBlock<T>& block, std::int64_t k) {
    if (block.count - k >= Shape::kRows) return whole_tile(problem, task, strip, block, k);
    return {block.tail_keys, problem.head_dim, scales_of(block, k), strip, problem.head_dim};
  }

 private:
  REGARD_INLINE const T* scales_of(const KeyBlock<T>& block, std::int64_t k) {
    return block.key_scales ? block.key_scales + k : nullptr;
  }
};

}  // namespace
}  // namespace regard
