// Iterates over the tiles of a block of keys for a strip: which tiles the strip sees, which of its
// vectors see a key of each tile, and what is added to their scores.
//
//   SeenTiles seen = see_tiles(...)        inspects positions, masks and ALiBi, but not keys
//   over_tiles(strip, seen, ..., body)     body(tile) for each visible tile, in order
//
// Differences between tiles that affect the code (whether a bias is added, whether it hides, how
// many vectors are computed) are part of the type of `tile`. The body is compiled for each type.
#pragma once

#include "bias.hpp"
#include "bool_mask.hpp"
#include "prefetch.hpp"

namespace regard {
namespace {

// The keys [begin, begin + count) of an array that belong to a block.
struct KeySpan {
  std::int64_t begin;
  int count;
};

template <class Shape>
REGARD_INLINE KeySpan span_at(std::int64_t begin, std::int64_t end) {
  const std::int64_t left = end - begin;
  return {begin, static_cast<int>(clamp(left, 0, Shape::kBlockKeys))};
}

template <class Shape>
constexpr int kBlockTiles = Shape::kBlockKeys / Shape::kRows;

// The part of a block that a strip sees.
template <class Shape>
struct SeenTiles {
  // From `begin` to `end`, which are tile boundaries, nothing is hidden from any lane or added to
  // any score.
  bool all;
  int begin;  // keys before it are hidden from all lanes; 0 if not `all`
  int end;    // keys from here on are hidden from all lanes; 0 if all keys are hidden
  TileKind kinds[kBlockTiles<Shape>];  // if not `all`
};

// Consecutive keys whose tiles are computed by the same vectors of a strip, without a hidden tile
// between them.
struct KeyRun {
  int begin;
  int end;
  VectorRange vectors;
};

template <class Shape>
struct KeyRuns {
  int count = 0;
  bool hide_something = false;  // some lane does not see some key of the runs
  KeyRun run[kBlockTiles<Shape>];

  REGARD_MEMBER void add(int begin, int end, const VectorRange& vectors) {
    if (count > 0) {
      KeyRun& last = run[count - 1];
      if (last.end == begin && last.vectors.begin == vectors.begin &&
          last.vectors.end == vectors.end) {
        last.end = end;
        return;
      }
    }
    run[count++] = {begin, end, vectors};
  }
};

// A tile in which a strip sees some key. kVectors of the strip's vectors are computed; the others
// see none of its keys.
template <Bias kBias_, int kVectors_>
struct Tile : TileKeys {
  static constexpr Bias kBias = kBias_;  // contents of its part of the bias
  static constexpr int kVectors = kVectors_;
};

// Fills the vectors of a tile, [kRows][kStripLanes], that are not computed.
template <class Shape, class Tile, class T = typename Shape::Element>
REGARD_NOINLINE void fill_others(T* rows, const Tile& tile, int vectors, T value) {
  for (int lane = 0; lane < vectors * kLanes<T>; lane += kLanes<T>) {
    if (lane >= tile.lane && lane < tile.lane + Tile::kVectors * kLanes<T>) continue;
    for (int r = 0; r < Shape::kRows; ++r)
      store(rows + r * Shape::kStripLanes + lane, broadcast(value));
  }
}
template <class Shape, class Tile, class T = typename Shape::Element>
REGARD_INLINE void fill_unseen(T* rows, const Tile& tile, int vectors, T value) {
  if (Tile::kBias == Bias::hides && Tile::kVectors < vectors)
    fill_others<Shape>(rows, tile, vectors, value);
}

// Determines the kind of a tile from its bias: all -inf, all 0, none -inf, or some -inf. Bits are
// compared, so that NaN is treated like any other value.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE TileKind kind_of_bias(const T* bias, int keys, int vectors) {
  const Mask<T> minus_infinity = as_bits<T>(broadcast(-kInfinity<T>));
  Mask<T> adds{}, shows{}, hides{};
  for (int k = 0; k < keys; ++k)
    for (int v = 0; v < vectors; ++v) {
      const Mask<T> bits = as_bits<T>(load(bias + k * Shape::kStripLanes + v * kLanes<T>));
      adds |= bits;
      shows |= bits ^ minus_infinity;
      hides |= bits == minus_infinity;
    }
  if (!any<T>(shows != 0)) return TileKind::hidden;
  if (any<T>(hides)) return TileKind::hiding;
  return any<T>(adds != 0) ? TileKind::biased : TileKind::visible;
}

// Finds the kind of every tile, and the bias of those that need one: [block keys][kStripLanes].
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void classify_tiles(const AttentionProblem& problem, const AttentionTask& task,
                                    const StripRows<T>& strip, const KeySpan& block, T* bias,
                                    SeenTiles<Shape>& tiles) {
  constexpr int kRows = Shape::kRows;
  constexpr int kTile = kRows * Shape::kStripLanes;
  const KeyInterval seen = seen_of_block(strip.seen, block.begin, block.count);
  tiles.end = 0;
  if (is_empty(seen)) return;
  TileKind* const kinds = tiles.kinds;
  BoolRows<Shape> rows;
  const bool reads_bools = task.mask || strip.mask_runs;
  tiles.begin = 0;
  const int first = static_cast<int>(seen.begin) / kRows;
  const int last = (static_cast<int>(seen.end) + kRows - 1) / kRows;
  BlockDistances<Shape> distances;
  if (task.distance_bias)
    find_distances(problem, task, strip, block.begin + first * kRows,
                   (last * kRows < block.count ? last * kRows : block.count) - first * kRows,
                   distances);
  for (int t = 0; t < last; ++t) kinds[t] = t >= first ? TileKind::visible : TileKind::hidden;
  if (reads_bools) {
    find_bool_rows(problem, task, strip, block.begin, block.count, rows);
    scan_bool_mask(rows, block.count, first, last, kinds);
  }
  if (task.bias) {
    const int keys = (last * kRows < block.count ? last * kRows : block.count) - first * kRows;
    load_bias<Shape>(problem, task, strip, block.begin + first * kRows, keys, bias + first * kTile);
  }
  for (int t = first; t < last; ++t) {
    const std::int64_t key = block.begin + t * kRows;
    const int keys = block.count - t * kRows < kRows ? block.count - t * kRows : kRows;
    T* tile = bias + t * kTile;
    const bool is_mixed = kinds[t] == TileKind::hiding;
    if (!overlaps(strip.seen, key, key + keys)) kinds[t] = TileKind::hidden;
    if (task.bias && kinds[t] != TileKind::hidden)
      kinds[t] = kind_of_bias<Shape>(tile, keys, strip.vectors);
    if (kinds[t] == TileKind::hidden) continue;
    bool is_set = task.bias != nullptr;
    if (strip.slopes) {
      add_alibi<Shape>(strip, key, is_set, tile);
      if (kinds[t] == TileKind::visible) kinds[t] = TileKind::biased;
      is_set = true;
    }
    if (task.distance_bias) {
      add_distance_bias(problem, task, strip, distances, key, keys, is_set, tile);
      kinds[t] = kind_of_bias<Shape>(tile, keys, strip.vectors);
      if (kinds[t] == TileKind::hidden) continue;
      is_set = true;
    }
    if (is_mixed) {
      hide_by_bool_mask(rows, strip, t * kRows, keys, is_set, tile);
      kinds[t] = TileKind::hiding;
      is_set = true;
    }
    if (!holds(strip.shared, key, key + kRows)) {
      hide_by_position<Shape>(strip, key, is_set, tile);
      kinds[t] = TileKind::hiding;
    }
    tiles.end = static_cast<int>(seen.end);
  }
}

// Whether keys of a block begin and end at tile boundaries.
template <class Shape>
REGARD_INLINE bool are_tiles(const KeySpan& block, const KeyInterval& keys) {
  return (keys.begin - block.begin) % Shape::kRows == 0 &&
         ((keys.end - block.begin) % Shape::kRows == 0 || keys.end == block.begin + block.count);
}

// Determines what a strip sees of a block. `bias` is memory for the terms added to the block's
// scores.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE SeenTiles<Shape> see_tiles(const AttentionProblem& problem, const AttentionTask& task,
                                         const StripRows<T>& strip, const KeySpan& block, T* bias) {
  SeenTiles<Shape> tiles;
  tiles.begin = 0;
  tiles.end = block.count;
  bool is_mixed = false;
  if (__builtin_expect(strip.mask_runs != nullptr, false)) {
    const MaskSight sight = sight_of_mask(problem, strip, block.begin, block.begin + block.count);
    if (sight.kind == TileKind::hidden) {
      tiles.all = false;
      tiles.end = 0;
      return tiles;
    }
    is_mixed = sight.kind == TileKind::hiding || !are_tiles<Shape>(block, sight.keys);
    if (!is_mixed) {
      tiles.begin = static_cast<int>(sight.keys.begin - block.begin);
      tiles.end = static_cast<int>(sight.keys.end - block.begin);
    }
  }
  tiles.all = !is_mixed && !task.mask && !task.bias && !strip.slopes && !task.distance_bias &&
              holds(strip.shared, block.begin + tiles.begin,
                    block.begin + round_up(tiles.end, Shape::kRows));
  if (!tiles.all) classify_tiles<Shape>(problem, task, strip, block, bias, tiles);
  return tiles;
}

// The part of a mask with separate rows that a strip will read next, to be prefetched.
template <class T>
struct NextMask {
  const StripRows<T>& strip;
  std::int64_t key;
};

// Calls body(kind, vectors, begin, end) for every part of a block in which the strip sees a key: a
// tile, or several tiles of which all lanes see all keys. `runs` must be empty at first, and
// contains the part when body is called.
template <class Shape, class Body, class T = typename Shape::Element>
REGARD_INLINE void over_parts(const AttentionProblem& problem, const AttentionTask& task,
                              const StripRows<T>& strip, const KeySpan& block,
                              const SeenTiles<Shape>& tiles, const NextMask<T>& next,
                              KeyRuns<Shape>& runs, const Body& body) {
  constexpr int kRows = Shape::kRows;
  const VectorRange all{0, strip.vectors};
  if (tiles.all) {
    runs.add(tiles.begin, tiles.end, all);
    return body(TileKind::visible, all, tiles.begin, tiles.end);
  }
  for (int k = 0; k < tiles.end; k += kRows) {
    const TileKind kind = tiles.kinds[k / kRows];
    prefetch_masks(problem, task, next.strip, next.key, Shape::kBlockKeys, k / kRows,
                   kBlockTiles<Shape>);
    if (kind == TileKind::hidden) continue;
    const int end = k + kRows < tiles.end ? k + kRows : tiles.end;
    const bool hides = kind == TileKind::hiding;
    const VectorRange seeing =
        hides && Shape::kTrims ? vectors_that_see(strip, block.begin + k, block.begin + end) : all;
    runs.hide_something |= hides;
    runs.add(k, end, seeing);
    body(kind, seeing, k, end);
  }
}

template <class Shape, Bias kBias, int kVectors, class Body>
REGARD_NOINLINE void tiles_of_part(int begin, int end, int lane, const Body& body) {
  if (kVectors == Shape::kVectors) lane = 0;  // saves registers
  for (int k = begin; k < end; k += Shape::kRows)
    body(Tile<kBias, kVectors>{{k, k + Shape::kRows < end ? k + Shape::kRows : end, lane}});
}

// Calls body(Tile) for every tile in which the strip sees a key. Without kAdds, which saves compile
// time, a bias that only adds is treated like a bias that hides.
template <class Shape, bool kAdds, class Body, class T = typename Shape::Element>
REGARD_INLINE void over_tiles(const AttentionProblem& problem, const AttentionTask& task,
                              const StripRows<T>& strip, const KeySpan& block,
                              const SeenTiles<Shape>& tiles, const NextMask<T>& next,
                              KeyRuns<Shape>& runs, const Body& body) {
  over_parts<Shape>(problem, task, strip, block, tiles, next, runs,
                    [&](TileKind kind, const VectorRange& seeing, int begin, int end) {
                      for_vectors<Shape>(seeing.end - seeing.begin, [&](auto vectors) {
                        constexpr int kVectors = decltype(vectors)::value;
                        const int lane = seeing.begin * kLanes<T>;
                        if (kind == TileKind::visible)
                          return tiles_of_part<Shape, Bias::none, kVectors>(begin, end, lane, body);
                        if constexpr (kAdds) {
                          if (kind == TileKind::biased)
                            return tiles_of_part<Shape, Bias::adds, kVectors>(begin, end, lane,
                                                                              body);
                        }
                        tiles_of_part<Shape, Bias::hides, kVectors>(begin, end, lane, body);
                      });
                    });
}

}  // namespace
}  // namespace regard
