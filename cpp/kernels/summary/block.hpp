// What a strip's weights for one block of keys add to what is known of its rows and of the keys:
//
//   P = 2^(score - lse)                      a tile of keys x queries, as in the backward kernel
//   row sums   += P log2 P, P, P^2, P |position - key|, and the largest P   from registers
//   row sums   += P of the first keys, of near keys, of single keys         from the block's weights, where it has such keys
//   columns[key] += the sum of P over the strip's rows                      likewise
//
// A hidden key has P = -0.0, whatever it holds.
#pragma once

#include "../attention/block_products.hpp"
#include "../attention/mask_tiles.hpp"
#include "../attention/online_softmax.hpp"
#include "top_keys.hpp"

namespace regard {
namespace {

template <class T>
struct SummaryKeys {
  std::int64_t begin;
  int count;
  BlockRows<T> rows;
  std::int64_t map_column = 0;  // the first one of the map that the block has a part of, and how many follow
  std::int64_t map_columns = 0;
};

REGARD_INLINE std::int64_t induction_key(const SummaryProblem& problem, const SummaryTask& task, std::int64_t row) {
  return task.induction_keys[row * problem.induction_keys.row_stride];
}

template <class Shape>
struct SummaryBlock {
  using T = typename Shape::Element;
  using Runs = KeyRuns<Shape>;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kBlockTiles = Shape::kBlockKeys / kRows;

  REGARD_NOINLINE void add(const SummaryProblem& problem, const SummaryTask& task, const SummaryWorkspace<T>& work,
                           const SummaryKeys<T>& block, SummaryStrip<T>& strip) {
    TileKind kinds[kBlockTiles];
    if (!classify_tiles<Shape>(problem.forward, task.forward, strip, block.begin, block.count, work.bias,
                               kinds))
      return;
    const int seen = static_cast<int>(seen_of_block(strip.seen, block.begin, block.count).end);
    const Runs runs = runs_of<Shape>(kinds, seen);
    multiply_keys<Shape>(strip.vectors, runs, block.rows, strip.queries, problem.forward.head_dim, false, work.weights);
    T distances[Shape::kStripLanes];
    const bool is_near = find_distances(strip, block.begin, distances);
    for_tiles<Shape>(kinds, seen, [&](int k, int end, TileKind kind) {
      if (!is_near) find_distances(strip, block.begin + k, distances);
      const T within = is_near ? static_cast<T>(k) : T(0);
      switch (kind) {
        case TileKind::visible: weights<Bias::none>(problem, work, block, strip, k, end, distances, within); break;
        case TileKind::biased: weights<Bias::adds>(problem, work, block, strip, k, end, distances, within); break;
        default: weights<Bias::hides>(problem, work, block, strip, k, end, distances, within);
      }
      if (block.map_columns > 0) add_to_map(problem.map, work, strip, k, end);
      if (task.column_sums) add_columns(work, strip, k, end, kind == TileKind::hiding);
    });
    if (block.map_columns > 0) add_lanes_to_pixels(problem.map, work, block, strip);
    if (task.first_mass && block.begin < problem.first_keys) add_first_mass(problem, work, block, runs, strip);
    if (task.local_mass) add_local_mass(work, block, runs, strip);
    if (task.previous || task.induced) pick(problem, task, work, block, kinds, seen, strip);
  }

 private:
  // distances[lane] = how far a query is from a key. Returns whether all are so near that those from the block's other
  // keys follow without rounding.
  REGARD_NOINLINE bool find_distances(const SummaryStrip<T>& strip, std::int64_t key, T* distances) {
    constexpr std::int64_t kNear = 1 << 23;
    bool are_near = true;
    for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
      const std::int64_t distance = strip.positions[lane] - key;
      distances[lane] = static_cast<T>(distance);
      are_near &= distance > -kNear && distance < kNear;
    }
    return are_near;
  }

  // `distances` are from the key that is `within` keys before the tile's first.
  template <Bias kBias>
  REGARD_NOINLINE void weights(const SummaryProblem& problem, const SummaryWorkspace<T>& work,
                               const SummaryKeys<T>& block, const SummaryStrip<T>& strip, int k, int end,
                               const T* distances, T within) {
    const int width = strip.vectors * kLanes<T>;
    T* const tile = work.weights + k * width;
    const T* const bias = work.bias + k * width;
    if (__builtin_expect(work.softcap != T(0), false)) cap_scores(work.softcap, tile, kRows * strip.vectors);
    const RowSums<T>& sums = strip.sums;
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      const Vec<T> lse = load<T>(strip.lse + lane);
      const Vec<T> distance = load(distances + lane) - broadcast(within);
      Vec<T> log_weight{}, total{}, square{}, away{}, top{};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int at = r * width + lane;
        Vec<T> score = load<T>(tile + at);
        if constexpr (kBias != Bias::none) score = with_added<T, kBias>(score, load(bias + at));
        score = lse < score ? lse : score;  // as in the backward kernel: no weight is above 1. NaN stays
        const Vec<T> weight = weight_of<T, kBias>(score, lse, bias, at);
        Vec<T> exponent = maximum<T>(broadcast(kNegligible<T>), score - lse);  // 0 log 0 is 0
        if constexpr (kBias == Bias::hides) exponent = unless_hidden<T>(exponent, load(bias + at), Vec<T>{});
        store(tile + at, weight);
        log_weight = fma(weight, exponent, log_weight);
        total = total + weight;
        square = fma(weight, weight, square);
        const Vec<T> from = distance - broadcast(static_cast<T>(r));
        away = fma(weight, maximum<T>(from, -from), away);
        top = maximum<T>(top, weight);
      }
      const auto add_to = [&](T* sum, Vec<T> more) { store(sum + lane, load<T>(sum + lane) + more); };
      add_to(sums.log_weight, log_weight);
      add_to(sums.total, total);
      add_to(sums.square, square);
      add_to(sums.distance, away);
      store(sums.largest + lane, maximum<T>(load<T>(sums.largest + lane), top));
      if (strip.top.weights && any_greater(top, load<T>(strip.top.weights + (problem.top_count - 1) * width + lane)))
        add_to_top<T>(strip.top, problem.top_count, tile, end - k, block.begin + k - strip.top.base, width, lane);
    }
  }

  // Lanes beyond the last row add nothing: their queries are zeros, which a key of inf makes NaN.
  REGARD_NOINLINE void add_columns(const SummaryWorkspace<T>& work, const SummaryStrip<T>& strip, int k, int end,
                                   bool hides) {
    const int width = strip.vectors * kLanes<T>;
    for (; k < end; ++k) {
      Vec<T> sum = load<T>(work.columns + k * kLanes<T>), rows{};
      for (int lane = 0; lane < width; lane += kLanes<T>) {
        const Vec<T> weight = load<T>(work.weights + k * width + lane);
        const Vec<T> is_row = load<T>(strip.is_row + lane);
        sum = sum + select<T>(is_row == Vec<T>{}, Vec<T>{}, weight);
        if (hides) rows = rows + select<T>(as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0))), Vec<T>{}, is_row);
      }
      store(work.columns + k * kLanes<T>, sum);
      T* const seen = work.column_rows + k * kLanes<T>;
      if (hides)
        store(seen, load<T>(seen) + rows);
      else
        *seen += static_cast<T>(strip.rows);
    }
  }

  // Lanes beyond the last row are not looked at again.
  REGARD_NOINLINE void add_to_map(const AttentionMap& map, const SummaryWorkspace<T>& work,
                                  const SummaryStrip<T>& strip, int k, int end) {
    const int width = strip.vectors * kLanes<T>;
    for (; k < end; ++k) {
      if (work.pixel_of_key[k] < 0) continue;
      T* const pixel = work.pixel_lanes + work.pixel_of_key[k] * width;
      for (int lane = 0; lane < width; lane += kLanes<T>) {
        const Vec<T> pooled = load<T>(pixel + lane), weight = load<T>(work.weights + k * width + lane);
        if (map.pooling == Pooling::largest)
          store(pixel + lane, select<T>((weight > pooled) | (weight != weight), weight, pooled));  // NaN stays
        else
          store(pixel + lane, pooled + weight);
      }
    }
  }

  // A pixel may hold millions of weights, whose sum would lose small ones in float32: lanes hold those of a block only.
  REGARD_NOINLINE void add_lanes_to_pixels(const AttentionMap& map, const SummaryWorkspace<T>& work,
                                           const SummaryKeys<T>& block, const SummaryStrip<T>& strip) {
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

  REGARD_NOINLINE void add_first_mass(const SummaryProblem& problem, const SummaryWorkspace<T>& work,
                                     const SummaryKeys<T>& block, const Runs& runs, const SummaryStrip<T>& strip) {
    const int width = strip.vectors * kLanes<T>;
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end && block.begin + k < problem.first_keys; ++k)
        for (int lane = 0; lane < width; lane += kLanes<T>) {
          T* const sum = strip.sums.sink + lane;
          store(sum, load<T>(sum) + load<T>(work.weights + k * width + lane));
        }
  }

  REGARD_NOINLINE void add_local_mass(const SummaryWorkspace<T>& work, const SummaryKeys<T>& block, const Runs& runs,
                                      const SummaryStrip<T>& strip) {
    const int width = strip.vectors * kLanes<T>;
    const int last = strip.rows - 1;
    if (strip.local_begin[0] >= block.begin + block.count || strip.local_end[last] <= block.begin) return;
    T begin[Shape::kStripLanes], end[Shape::kStripLanes];
    for (int lane = 0; lane < width; ++lane) {
      begin[lane] = static_cast<T>(clamp(strip.local_begin[lane] - block.begin, 0, block.count));
      end[lane] = static_cast<T>(clamp(strip.local_end[lane] - block.begin, 0, block.count));
    }
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; ++k) {
        const Vec<T> here = broadcast(static_cast<T>(k));
        for (int lane = 0; lane < width; lane += kLanes<T>) {
          T* const sum = strip.sums.local + lane;
          const Vec<T> weight = load<T>(work.weights + k * width + lane);
          const Mask<T> is_far = (here < load<T>(begin + lane)) | (here >= load<T>(end + lane));
          store(sum, load<T>(sum) + select<T>(is_far, Vec<T>{}, weight));
        }
      }
  }

  // The weight of one key for each row. A key whose tile is hidden has weight 0.
  REGARD_NOINLINE void pick(const SummaryProblem& problem, const SummaryTask& task, const SummaryWorkspace<T>& work, const SummaryKeys<T>& block,
                            const TileKind* kinds, int seen, const SummaryStrip<T>& strip) {
    const int width = strip.vectors * kLanes<T>;
    const auto weight_of_key = [&](std::int64_t key, int lane, T* picked) {
      const std::int64_t k = key - block.begin;
      if (k < 0 || k >= seen || kinds[k / kRows] == TileKind::hidden) return;
      picked[lane] = work.weights[k * width + lane] + T(0);
    };
    for (int lane = 0; lane < strip.rows; ++lane) {
      if (task.previous) weight_of_key(strip.positions[lane] - 1, lane, strip.sums.previous);
      if (task.induced) weight_of_key(induction_key(problem, task, strip.first_row + lane), lane, strip.sums.induced);
    }
  }
};

}  // namespace
}  // namespace regard
