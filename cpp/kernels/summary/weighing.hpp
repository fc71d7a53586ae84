// Adds a strip's weights for one block of keys to the statistics of its rows and of the keys:
//
//   P = e^(score - lse)                      a tile of keys x queries, as in the backward kernel
//   row sums   += P log P, P, P^2, P |position - key|, and the largest P   from registers
//   row sums   += P of the first keys, of near keys, of single keys   from the block's weights
//   columns[key] += the sum of P over the strip's rows                      likewise
//
// A hidden key has P = -0.0, whatever it contains.
#pragma once

#include "../strips/scores.hpp"
#include "../strips/tiles.hpp"
#include "top_keys.hpp"

namespace regard {
namespace {

template <class T>
struct SummaryKeys : KeySpan {
  TileRows<T> rows{};
  // The first column of the map that overlaps the block, and the number of such columns.
  std::int64_t map_column = 0;
  std::int64_t map_columns = 0;
};

REGARD_INLINE std::int64_t induction_key(const SummaryProblem& problem, const SummaryTask& task,
                                         std::int64_t row) {
  return task.induction_keys[row * problem.induction_keys.row_stride];
}

template <class Shape>
struct SummaryWeighing {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kPitch = Shape::kStripLanes;

  REGARD_NOINLINE void add(const SummaryProblem& problem, const SummaryTask& task,
                           const SummaryWorkspace<T>& work, SummaryKeys<T>& block,
                           SummaryStrip<T>& strip) {
    const AttentionProblem& forward = problem.forward;
    const SeenTiles<Shape> tiles = see_tiles<Shape>(forward, task.forward, strip, block, work.bias);
    if (tiles.end == 0) return;
    if (!block.rows.from)
      block.rows = provide_rows<T, kRows>(keys_of(forward, task.forward), block.begin, block.count,
                                          forward.head_dim, forward.head_dim, work.keys);
    T distances[Shape::kStripLanes];
    const bool is_near = find_distances(strip, block.begin, distances);
    const NextMask<T> next{strip, block.begin + Shape::kBlockKeys};
    KeyRuns<Shape> runs;
    over_tiles<Shape, false>(
        forward, task.forward, strip, block, tiles, next, runs, [&](const auto& tile) {
          if (!is_near) find_distances(strip, block.begin + tile.begin, distances);
          weigh(tile, problem, task, work, block, strip, distances,
                is_near ? static_cast<T>(tile.begin) : T(0));
          if (block.map_columns > 0) add_to_map(problem.map, work, strip, tile.begin, tile.end);
          if (task.column_sums)
            add_column_sums(work, strip, tile.begin, tile.end, tile.kBias == Bias::hides);
        });
    if (block.map_columns > 0) add_lanes_to_pixels(problem.map, work, block, strip);
    if (task.statistics[kFirstMass])
      add_mass(work, block, runs, strip, strip.block.first,
               [&](int) { return KeyInterval{0, problem.first_keys}; });
    if (task.statistics[kLocalMass])
      add_mass(work, block, runs, strip, strip.block.local, [&](int lane) {
        const std::int64_t position = strip.positions[lane];
        return KeyInterval{position - problem.local_reach, position + problem.local_reach + 1};
      });
    if (task.statistics[kPrevious] || task.statistics[kInduced])
      pick(problem, task, work, block, tiles, strip);
    fold(strip.block, strip.chunk);
  }

  // Adds the sums of one level to the sums of the next level.
  REGARD_INLINE void fold(const RowSums<T>& from, const RowSums<T>& to) {
    for (int i = 0; i < kRowSums * kPitch; i += kLanes<T>) {
      store(to.log_weight + i, load<T>(to.log_weight + i) + load<T>(from.log_weight + i));
      store(from.log_weight + i, Vec<T>{});
    }
  }

 private:
  // distances[lane] = the distance of a query from a key. Returns whether all distances are so
  // small that the distances from the block's other keys can be derived without rounding.
  REGARD_NOINLINE bool find_distances(const SummaryStrip<T>& strip, std::int64_t key,
                                      T* distances) {
    constexpr std::int64_t kNear = 1 << 23;
    bool are_near = true;
    for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
      const std::int64_t distance = strip.positions[lane] - key;
      distances[lane] = static_cast<T>(distance);
      are_near &= distance > -kNear && distance < kNear;
    }
    return are_near;
  }

  // `distances` are relative to the key that is `within` keys before the tile's first key.
  template <class Tile>
  REGARD_INLINE void weigh(const Tile& tile, const SummaryProblem& problem, const SummaryTask& task,
                           const SummaryWorkspace<T>& work, const SummaryKeys<T>& block,
                           const SummaryStrip<T>& strip, const T* distances, T within) {
    constexpr int kVectors = Tile::kVectors;
    T* const weights = work.weights + tile.begin * kPitch;
    const T* const bias = work.bias + tile.begin * kPitch;
    Accumulators<T, kRows, kVectors> acc;
    score_tile<Shape>(acc, tile,
                      ScoresOfBlock<T>{problem.forward, task.forward, strip, block.begin},
                      product_of<Shape>(tile, block.rows, strip.queries, problem.forward.head_dim),
                      bias, weights);
    fill_unseen<Shape>(weights, tile, strip.vectors, T(-0.0));
    const RowSums<T>& sums = strip.block;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int lane = tile.lane + v * kLanes<T>;
      const Vec<T> distance = load(distances + lane) - broadcast(within);
      Vec<T> log_weight{}, total{}, square{}, away{}, top{};
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = r * kPitch + lane;
        const Vec<T> log_of_weight = exponent_below_lse<T>(acc[r][v], strip.lse, lane);
        const Vec<T> weight = weight_of_exponent<T, Tile::kBias>(log_of_weight, bias, at);
        Vec<T> exponent = maximum<T>(broadcast(kNegligible<T>), log_of_weight);  // 0 log 0 is 0
        if constexpr (Tile::kBias == Bias::hides)
          exponent = unless_hidden<T>(exponent, load(bias + at), Vec<T>{});
        store(weights + at, weight);
        log_weight = fma(weight, exponent, log_weight);
        total = total + weight;
        square = fma(weight, weight, square);
        const Vec<T> from = distance - broadcast(static_cast<T>(r));
        away = fma(weight, maximum<T>(from, -from), away);
        top = maximum<T>(top, weight);
      }
      const auto add_to = [&](T* sum, Vec<T> more) {
        store(sum + lane, load<T>(sum + lane) + more);
      };
      add_to(sums.log_weight, log_weight);
      add_to(sums.total, total);
      add_to(sums.square, square);
      add_to(sums.distance, away);
      store(strip.largest + lane, maximum<T>(load<T>(strip.largest + lane), top));
      if (strip.top.weights &&
          any_greater(top, load<T>(strip.top.weights + (problem.top_count - 1) * kPitch + lane)))
        add_to_top<T>(strip.top, problem.top_count, weights, tile.end - tile.begin,
                      block.begin + tile.begin - strip.top.base, kPitch, lane);
    }
  }

  // Lanes beyond the last row are not added: their queries are zeros, which a key of inf turns into
  // NaN.
  REGARD_NOINLINE void add_column_sums(const SummaryWorkspace<T>& work,
                                       const SummaryStrip<T>& strip, int k, int end, bool hides) {
    const int lanes = strip.vectors * kLanes<T>;
    for (; k < end; ++k) {
      Vec<T> sum = load<T>(work.columns + k * kLanes<T>), rows{};
      for (int lane = 0; lane < lanes; lane += kLanes<T>) {
        const Vec<T> weight = load<T>(work.weights + k * kPitch + lane);
        const Vec<T> is_row = load<T>(strip.is_row + lane);
        sum = sum + select<T>(is_row == Vec<T>{}, Vec<T>{}, weight);
        if (hides)
          rows = rows +
                 select<T>(as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0))), Vec<T>{}, is_row);
      }
      store(work.columns + k * kLanes<T>, sum);
      T* const seen = work.column_rows + k * kLanes<T>;
      if (hides)
        store(seen, load<T>(seen) + rows);
      else
        *seen += static_cast<T>(strip.rows);
    }
  }

  // Lanes beyond the last row are not read again.
  REGARD_NOINLINE void add_to_map(const AttentionMap& map, const SummaryWorkspace<T>& work,
                                  const SummaryStrip<T>& strip, int k, int end) {
    const int width = strip.vectors * kLanes<T>;
    for (; k < end; ++k) {
      if (work.pixel_of_key[k] < 0) continue;
      T* const pixel = work.pixel_lanes + work.pixel_of_key[k] * width;
      for (int lane = 0; lane < width; lane += kLanes<T>) {
        const Vec<T> pooled = load<T>(pixel + lane),
                     weight = load<T>(work.weights + k * kPitch + lane);
        if (map.pooling == Pooling::largest)
          store(pixel + lane,
                select<T>((weight > pooled) | (weight != weight), weight, pooled));  // NaN stays
        else
          store(pixel + lane, pooled + weight);
      }
    }
  }

  // A pixel may contain millions of weights, and a float32 sum would lose the small ones, so lanes
  // hold the weights of only one block.
  REGARD_NOINLINE void add_lanes_to_pixels(const AttentionMap& map, const SummaryWorkspace<T>& work,
                                           const SummaryKeys<T>& block,
                                           const SummaryStrip<T>& strip) {
    const int width = strip.vectors * kLanes<T>;
    for (std::int64_t c = 0; c < block.map_columns; ++c) {
      T* const lanes = work.pixel_lanes + c * width;
      double* const column = work.pixels + block.map_column + c;
      for (int lane = 0; lane < strip.rows; ++lane) {
        const auto pooled = static_cast<double>(lanes[lane]);
        double& pixel = column[strip.map_row[lane] * map.width];
        if (map.pooling != Pooling::largest)
          pixel += pooled;
        else if (pooled > pixel || pooled != pooled)
          pixel = pooled;
      }
      for (int lane = 0; lane < width; lane += kLanes<T>) store(lanes + lane, Vec<T>{});
    }
  }

  // Adds the weights of the keys of keys_of(lane).
  template <class KeysOf>
  REGARD_INLINE void add_mass(const SummaryWorkspace<T>& work, const SummaryKeys<T>& block,
                              const KeyRuns<Shape>& runs, const SummaryStrip<T>& strip, T* sums,
                              KeysOf keys_of) {
    const int width = strip.vectors * kLanes<T>;
    T begin[Shape::kStripLanes], end[Shape::kStripLanes];
    bool is_near = false;
    for (int lane = 0; lane < width; ++lane) {
      const KeyInterval keys = keys_of(lane);
      begin[lane] = static_cast<T>(clamp(keys.begin - block.begin, 0, block.count));
      end[lane] = static_cast<T>(clamp(keys.end - block.begin, 0, block.count));
      is_near |= begin[lane] < end[lane];
    }
    if (!is_near) return;
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; ++k) {
        const Vec<T> here = broadcast(static_cast<T>(k));
        for (int lane = 0; lane < width; lane += kLanes<T>) {
          T* const sum = sums + lane;
          const Vec<T> weight = load<T>(work.weights + k * kPitch + lane);
          const Mask<T> is_far = (here < load<T>(begin + lane)) | (here >= load<T>(end + lane));
          store(sum, load<T>(sum) + select<T>(is_far, Vec<T>{}, weight));
        }
      }
  }

  // Picks the weight of one key for each row. A key in a hidden tile has weight 0.
  REGARD_NOINLINE void pick(const SummaryProblem& problem, const SummaryTask& task,
                            const SummaryWorkspace<T>& work, const SummaryKeys<T>& block,
                            const SeenTiles<Shape>& tiles, const SummaryStrip<T>& strip) {
    const auto weight_of_key = [&](std::int64_t key, int lane, T* picked) {
      const std::int64_t k = key - block.begin;
      if (k < tiles.begin || k >= tiles.end ||
          (!tiles.all && tiles.kinds[k / kRows] == TileKind::hidden))
        return;
      picked[lane] = work.weights[k * kPitch + lane] + T(0);
    };
    for (int lane = 0; lane < strip.rows; ++lane) {
      if (task.statistics[kPrevious])
        weight_of_key(strip.positions[lane] - 1, lane, strip.previous);
      if (task.statistics[kInduced])
        weight_of_key(induction_key(problem, task, strip.first_row + lane), lane, strip.induced);
    }
  }
};

}  // namespace
}  // namespace regard
