// The index of some queries and keys (../../problem/selection.hpp):
//
//   for a block of keys               keys stream through L2
//     for a strip of heads            of one query, or of several queries if they fit
//       products, in tiles            as in attention: [key][lane], one lane per head
//       each key's lanes, transposed  added to the query's index in the order of the heads
//
// The order of a sum is the order of the heads, whatever the strips, so that an index depends only
// on the query and the key.
#pragma once

#include "../../problem/selection.hpp"
#include "../../simd/transpose.hpp"
#include "../ahead.hpp"
#include "../kernel_table.hpp"
#include "../strips/lanes.hpp"
#include "../strips/scores.hpp"
#include "../strips/setup.hpp"
#include "../strips/tiles.hpp"

namespace regard {
namespace {

template <class T>
struct SelectionStrip : StripRows<T> {
  T* queries;       // [head_dim][lanes]
  T* head_weights;  // [lanes]
};

template <class T>
struct SelectionWorkspace {
  SelectionStrip<T>* strips;
  int strip_count;
  T* terms;  // [block keys][lanes]: the terms of the index
  T* bias;   // [block keys][lanes]
  RowCopies<T> keys;
};

template <class Shape>
struct Selection {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kPitch = Shape::kStripLanes;
  static constexpr int kWidth = kLanes<T>;
  static_assert(Shape::kBlockKeys % kWidth == 0, "the keys of a block are transposed in squares");

  static constexpr SelectionKernels kernels() {
    return {task_queries, workspace_bytes, begin, index};
  }

  // The heads of a task's queries fit in half of L2: each block of keys meets them all.
  static std::int64_t task_queries(const SelectionProblem& problem) {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t bytes = round_up(group_of(forward), kWidth) * forward.head_dim *
                               static_cast<std::int64_t>(sizeof(T));
    const std::int64_t most = Shape::kMostTaskRows / group_of(forward);
    return clamp(forward.l2_bytes / 2 / bytes, 1, most < 1 ? 1 : most);
  }

  static std::int64_t workspace_bytes(const SelectionProblem& problem, std::int64_t queries) {
    return lay_out(problem, queries * group_of(problem.forward), nullptr);
  }

  static SeenKeys begin(const SelectionProblem& problem, const SelectionTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    lay_out(problem, task.forward.row_end - task.forward.row_begin, memory);
    const SelectionWorkspace<T>& work = *static_cast<const SelectionWorkspace<T>*>(memory);
    const SeenKeys seen = locate_strips(forward, task.forward, work.strips, work.strip_count);
    for (int s = 0; s < work.strip_count; ++s) {
      const SelectionStrip<T>& strip = work.strips[s];
      pack_queries<Shape>(forward, forward.query, task.forward.query, strip, strip.queries);
      for (int lane = 0; lane < kPitch; ++lane) strip.head_weights[lane] = T(0);
      for_numbers_of_rows<Shape>(
          forward, problem.head_weights, task.head_weights, strip,
          [&](int lane, double number) { strip.head_weights[lane] = nearest_finite<T>(number); });
    }
    return from_whole_blocks<Shape>(seen);
  }

  // to[query][key - key_begin] = the index, or -inf if the query does not see the key, for keys
  // from `key_begin` to the end of the block in which the interval ends.
  static void index(const SelectionProblem& problem, const SelectionTask& task,
                    std::int64_t key_begin, std::int64_t key_end, void* to, std::int64_t stride,
                    void* memory) {
    const SelectionWorkspace<T>& work = *static_cast<const SelectionWorkspace<T>*>(memory);
    const AttentionProblem& forward = problem.forward;
    const std::int64_t rows = task.forward.row_end - task.forward.row_begin;
    const std::int64_t keys = round_up(key_end - key_begin, Shape::kBlockKeys);
    T* const indices = static_cast<T*>(to);
    for (std::int64_t query = 0; query < rows / group_of(forward); ++query)
      for (std::int64_t i = 0; i < keys; i += kWidth)
        store(indices + query * stride + i, broadcast(-kInfinity<T>));
    const auto add_block = [&](std::int64_t key, std::int64_t next_key) {
      const KeySpan block = span_at<Shape>(key, task.forward.kv_len);
      if (block.count == 0) return;
      const KvRows keys_of_task = keys_of(forward, task.forward);
      // A key takes so little time with few heads that it would be waited for.
      Ahead ahead;
      const KeySpan next = span_at<Shape>(next_key, task.forward.kv_len);
      if (forward.key.column_stride == 1 && next.count > 0)
        ahead.add(keys_of_task, next.begin, next.count, forward.head_dim);
      TileRows<T> rows{};
      for (int s = 0; s < work.strip_count; ++s) {
        const SelectionStrip<T>& strip = work.strips[s];
        if (!sees_block<Shape>(strip, key)) continue;
        const SeenTiles<Shape> tiles =
            see_tiles<Shape>(forward, task.forward, strip, block, work.bias);
        if (tiles.end == 0) continue;
        if (!rows.from)
          rows = provide_rows<T, kRows>(keys_of_task, block.begin, block.count, forward.head_dim,
                                        forward.head_dim, work.keys);
        find_terms(forward, task.forward, work, block, rows, tiles, strip,
                   s == 0 ? &ahead : nullptr);
        add_heads(forward, task.forward, work, block, strip, indices + (key - key_begin), stride);
      }
    };
    over_blocks_seen<Shape>(forward, work.strips, work.strip_count, key_begin, key_end, add_block);
  }

 private:
  static std::int64_t group_of(const AttentionProblem& problem) {
    return problem.heads / problem.kv_heads;
  }

  // Calls body(first_row, rows) for each strip: as many whole queries as fit, or a part of the
  // heads of one query, in parts of about the same size.
  template <class Body>
  static void for_strips_of_queries(const AttentionProblem& problem, std::int64_t rows, Body body) {
    const std::int64_t group = group_of(problem);
    if (group <= kPitch) {
      const std::int64_t step = kPitch / group * group;
      for (std::int64_t row = 0; row < rows; row += step)
        body(row, rows - row < step ? rows - row : step);
      return;
    }
    const std::int64_t vectors = round_up(group, kWidth) / kWidth;
    const std::int64_t parts = (vectors + Shape::kVectors - 1) / Shape::kVectors;
    const std::int64_t step = (vectors + parts - 1) / parts * kWidth;
    for (std::int64_t query = 0; query < rows; query += group)
      for (std::int64_t head = 0; head < group; head += step)
        body(query + head, group - head < step ? group - head : step);
  }

  REGARD_NOINLINE std::int64_t lay_out(const SelectionProblem& problem, std::int64_t rows,
                                       void* memory) {
    const AttentionProblem& forward = problem.forward;
    Arena arena(memory);
    auto* const place = arena.take<SelectionWorkspace<T>>(1);
    SelectionWorkspace<T> work{};
    for_strips_of_queries(forward, rows, [&](std::int64_t, std::int64_t) { ++work.strip_count; });
    work.strips = arena.take<SelectionStrip<T>>(work.strip_count);
    int number = 0;
    for_strips_of_queries(forward, rows, [&](std::int64_t first_row, std::int64_t strip_rows) {
      SelectionStrip<T> strip{};
      strip.first_row = first_row;
      strip.rows = static_cast<int>(strip_rows);
      strip.vectors = Shape::vectors_for(strip.rows);
      take_rows(forward, kPitch, arena, strip);
      strip.queries = arena.take<T>(forward.head_dim * kPitch);
      strip.head_weights = arena.take<T>(kPitch);
      if (!arena.only_counts()) work.strips[number] = strip;
      ++number;
    });
    work.terms = arena.take<T>(Shape::kBlockKeys * kPitch);
    work.bias = arena.take<T>(Shape::kBlockKeys * kPitch);
    work.keys = {arena.take<T>(Shape::kBlockKeys * forward.head_dim),
                 arena.take<T>(kRows * forward.head_dim), nullptr};
    if (place) *place = work;
    return arena.used();
  }

  REGARD_NOINLINE void find_terms(const AttentionProblem& problem, const AttentionTask& task,
                                  const SelectionWorkspace<T>& work, const KeySpan& block,
                                  const TileRows<T>& rows, const SeenTiles<Shape>& tiles,
                                  const SelectionStrip<T>& strip, Ahead* ahead) {
    const std::int64_t dim = problem.head_dim;
    const int lines = static_cast<int>(dim * bytes_of(problem.key.element) / kLineBytes) + 1;
    if (!tiles.all || tiles.begin > 0 || tiles.end < Shape::kBlockKeys)
      for (int i = 0; i < Shape::kBlockKeys * kPitch; i += kWidth)
        store(work.terms + i, broadcast(-kInfinity<T>));
    SeenTiles<Shape> left = tiles;
    constexpr int kTwo = 2 * kRows;
    if (kTwo <= 8 && strip.vectors == 1 && tiles.all) {
      // Four sums are too few to hide the latency of a multiply-add.
      const std::int64_t end = rows.whole < tiles.end ? rows.whole : tiles.end;
      for (; left.begin + kTwo <= end; left.begin += kTwo) {
        const Tile<Bias::none, 1> two{{left.begin, left.begin + kTwo, 0}};
        if (ahead) ahead->ask_lines(kTwo * lines);
        find_terms_of_keys<kTwo>(two, work, strip,
                                 product_of<Shape>(two, rows, strip.queries, dim));
      }
    }
    const NextMask<T> next{strip, block.begin + Shape::kBlockKeys};
    KeyRuns<Shape> runs;
    over_tiles<Shape, false>(problem, task, strip, block, left, next, runs, [&](const auto& tile) {
      if (ahead) ahead->ask_lines(kRows * lines);
      find_terms_of_keys<kRows>(tile, work, strip,
                                product_of<Shape>(tile, rows, strip.queries, dim));
    });
  }

  template <int kKeys, class Tile, class Product>
  REGARD_INLINE void find_terms_of_keys(const Tile& tile, const SelectionWorkspace<T>& work,
                                        const SelectionStrip<T>& strip, const Product& product) {
    Accumulators<T, kKeys, Tile::kVectors> acc;
    product.template multiply<kKeys, Tile::kVectors>(acc, tile.lane);
    T* const terms = work.terms + tile.begin * kPitch;
    const T* const bias = work.bias + tile.begin * kPitch;
#pragma GCC unroll 8
    for (int v = 0; v < Tile::kVectors; ++v) {
      const int lane = tile.lane + v * kWidth;
      const Vec<T> weight = load(strip.head_weights + lane);
#pragma GCC unroll 16
      for (int r = 0; r < kKeys; ++r) {
        Vec<T> term = maximum<T>(Vec<T>{}, acc[r][v]) * weight;  // NaN stays
        if constexpr (Tile::kBias == Bias::hides)
          term = unless_hidden<T>(term, load(bias + r * kPitch + lane), broadcast(-kInfinity<T>));
        store(terms + r * kPitch + lane, term);
      }
    }
    fill_unseen<Shape>(terms, tile, strip.vectors, -kInfinity<T>);
  }

  // Sums are written, not added, if the strip has the first heads of a query.
  REGARD_NOINLINE void add_heads(const AttentionProblem& problem, const AttentionTask& task,
                                 const SelectionWorkspace<T>& work, const KeySpan& block,
                                 const SelectionStrip<T>& strip, T* to, std::int64_t stride) {
    const std::int64_t group = group_of(problem), first = strip.first_row - task.row_begin;
    for (int key = 0; key < block.count; key += kWidth) {
      T* sums = to + first / group * stride + key;
      std::int64_t head = first % group;
      Vec<T> sum = head == 0 ? Vec<T>{} : load<T>(sums);
      for (int lane = 0; lane < strip.rows; lane += kWidth) {
        Vec<T> heads[kWidth];
        for (int i = 0; i < kWidth; ++i) heads[i] = load<T>(work.terms + (key + i) * kPitch + lane);
        transpose<T>(heads);
        const int count = strip.rows - lane < kWidth ? strip.rows - lane : kWidth;
        for (int i = 0; i < count; ++i) {
          sum = sum + heads[i];
          if (++head < group) continue;
          store(sums, sum);
          sums += stride;
          head = 0;
          sum = Vec<T>{};
        }
      }
      if (head > 0) store(sums, sum);
    }
  }
};

}  // namespace
}  // namespace regard
