// Statistics of attention weights, for the rows of one task, in one pass over the keys:
//
//   for a block of keys               keys stream through L2
//     for a strip of queries          queries stay in L2
//       weights and their sums        weighing.hpp
//     columns of the block            added to sums shared by the tasks of one part of a head
#pragma once

#include <initializer_list>

#include "../strips/lanes.hpp"
#include "../kernel_table.hpp"
#include "weighing.hpp"

namespace regard {
namespace {

template <class Shape>
struct Summary {
  using T = typename Shape::Element;
  using Weighing = SummaryWeighing<Shape>;
  static constexpr int kPitch = Shape::kStripLanes;

  static constexpr SummaryKernels kernels() { return {workspace_bytes, begin, advance, finish}; }

  static std::int64_t workspace_bytes(const SummaryProblem& problem, std::int64_t task_rows) {
    return lay_out_summary<Shape>(problem, task_rows, nullptr);
  }

  static SeenKeys begin(const SummaryProblem& problem, const SummaryTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    lay_out_summary<Shape>(problem, task.forward.row_end - task.forward.row_begin, memory);
    const SummaryWorkspace<T>& work = *static_cast<const SummaryWorkspace<T>*>(memory);
    SeenKeys seen = locate_strips(forward, task.forward, work.strips, work.strip_count);
    for (int s = 0; s < work.strip_count; ++s) {
      SummaryStrip<T>& strip = work.strips[s];
      const int lanes = strip.vectors * kLanes<T>;
      locate_queries(task.forward, strip);
      for (int lane = 0; lane < lanes; ++lane) {
        strip.is_row[lane] = lane < strip.rows ? T(1) : T(0);
        strip.largest[lane] = strip.previous[lane] = strip.induced[lane] = T(0);
        if (strip.map_row && lane < strip.rows) {
          const AttentionMap& map = problem.map;
          strip.map_row[lane] = part_of(strip.first_row + lane - map.row_begin,
                                        map.row_end - map.row_begin, map.height) -
                                task.map_row;
        }
      }
      for (const RowSums<T>& sums : {strip.block, strip.chunk, strip.sums})
        for (int i = 0; i < kRowSums * kPitch; ++i) sums.log_weight[i] = T(0);
      load_lse<Shape>(forward, task.forward, strip, strip.lse);
      strip.chunk_number = 0;
      if (strip.top.weights) start_top(strip.top, problem.top_count, kPitch);
      pack_queries<Shape>(forward, forward.query, task.forward.query, strip, strip.queries);
    }
    if (task.pixels) {
      for (std::int64_t i = 0; i < task.map_rows * problem.map.width; ++i) work.pixels[i] = 0.0;
      for (int i = 0; i < Shape::kBlockKeys * Shape::kStripLanes; i += kLanes<T>)
        store(work.pixel_lanes + i, Vec<T>{});
      for (KeyInterval* keys : {&seen.keep_first, &seen.window})
        *keys = {clamp(problem.map.key_begin, keys->begin, keys->end),
                 clamp(problem.map.key_end, keys->begin, keys->end)};
    }
    return from_whole_blocks<Shape>(seen);
  }

  static void advance(const SummaryProblem& problem, const SummaryTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const SummaryWorkspace<T>& work = *static_cast<const SummaryWorkspace<T>*>(memory);
    const auto add_block = [&](std::int64_t key, std::int64_t) {
      SummaryKeys<T> block{span_at<Shape>(key, task.forward.kv_len)};
      const int count = block.count;
      if (count == 0) return;
      if (task.pixels) find_columns(problem.map, work, block);
      for (int i = 0; task.column_sums && i < count; ++i) {
        store(work.columns + i * kLanes<T>, Vec<T>{});
        store(work.column_rows + i * kLanes<T>, Vec<T>{});
      }
      for (int s = 0; s < work.strip_count; ++s) {
        SummaryStrip<T>& strip = work.strips[s];
        if (key / Shape::kChunkKeys != strip.chunk_number) {
          strip.chunk_number = key / Shape::kChunkKeys;
          Weighing::fold(strip.chunk, strip.sums);
        }
        if (!sees_block<Shape>(strip, key)) continue;
        if (strip.top.weights) move_base(strip.top, problem.top_count, kPitch, key);
        Weighing::add(problem, task, work, block, strip);
      }
      for (int i = 0; task.column_sums && i < count; ++i) {
        for (int lane = i * kLanes<T>; lane < (i + 1) * kLanes<T>; ++lane) {
          task.column_sums[key + i] += static_cast<double>(work.columns[lane]);
          task.column_counts[key + i] += static_cast<double>(work.column_rows[lane]);
        }
      }
    };
    over_blocks_seen<Shape>(problem.forward, work.strips, work.strip_count, key_begin, key_end,
                            add_block);
  }

  static void finish(const SummaryProblem& problem, const SummaryTask& task, void* memory) {
    const SummaryWorkspace<T>& work = *static_cast<const SummaryWorkspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      const SummaryStrip<T>& strip = work.strips[s];
      const RowSums<T>& sums = strip.sums;
      Weighing::fold(strip.chunk, sums);
      for (int lane = 0; lane < strip.rows; ++lane) {
        // A NaN among a row's weights appears in all statistics of the row.
        if (sums.log_weight[lane] != sums.log_weight[lane]) strip.largest[lane] = kNaN;
        T& square = sums.square[lane];  // replaced by the count
        if (square != T(0)) square = sums.total[lane] * sums.total[lane] / square;
      }
      const T* const results[kRowStatistics] = {sums.log_weight, strip.largest, sums.square,
                                                sums.distance,   sums.first,    sums.local,
                                                strip.previous,  strip.induced};
      for (int i = 0; i < kRowStatistics; ++i) {
        const T factor = i == kEntropy ? T(-1) : T(1);
        write_numbers_of_rows<Shape>(problem.forward, problem.statistics[i], task.statistics[i],
                                     strip,
                                     [&](int lane) { return results[i][lane] * factor + T(0); });
      }
      if (task.top_weights) write_top(problem, task, strip);
    }
    if (task.pixels) write_pixels(problem.map, task, work);
  }

 private:
  static constexpr T kNaN = static_cast<T>(__builtin_nan(""));

  // `locate_rows` does not set positions if all rows see all keys.
  REGARD_NOINLINE void locate_queries(const AttentionTask& task, const StripRows<T>& strip) {
    for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
      const std::int64_t row = strip.first_row + (lane < strip.rows ? lane : strip.rows - 1);
      strip.positions[lane] =
          clamp_wide(static_cast<Wide>(row) + task.query_offset, INT64_MIN / 2, INT64_MAX / 2);
    }
  }

  // Returns the part that contains element `index`, if part c begins at floor(c count / parts).
  static std::int64_t part_of(std::int64_t index, std::int64_t count, std::int64_t parts) {
    return ((index + 1) * parts - 1) / count;
  }

  REGARD_NOINLINE void find_columns(const AttentionMap& map, const SummaryWorkspace<T>& work,
                                    SummaryKeys<T>& block) {
    for (int k = 0; k < block.count; ++k) {
      const std::int64_t key = block.begin + k;
      work.pixel_of_key[k] = -1;
      if (key < map.key_begin || key >= map.key_end) continue;
      const std::int64_t column =
          part_of(key - map.key_begin, map.key_end - map.key_begin, map.width);
      if (block.map_columns == 0) block.map_column = column;
      work.pixel_of_key[k] = column - block.map_column;
      block.map_columns = work.pixel_of_key[k] + 1;
    }
  }

  REGARD_NOINLINE void write_pixels(const AttentionMap& map, const SummaryTask& task,
                                    const SummaryWorkspace<T>& work) {
    const std::int64_t rows = map.row_end - map.row_begin, keys = map.key_end - map.key_begin;
    const auto size_of_part = [](std::int64_t part, std::int64_t count, std::int64_t parts) {
      return (part + 1) * count / parts - part * count / parts;
    };
    for (std::int64_t r = 0; r < task.map_rows; ++r) {
      T* const to = static_cast<T*>(task.pixels) + r * map.pixels.row_stride;
      const std::int64_t height = size_of_part(task.map_row + r, rows, map.height);
      for (std::int64_t c = 0; c < map.width; ++c) {
        const std::int64_t pooled =
            map.pooling == Pooling::mean ? height * size_of_part(c, keys, map.width) : 1;
        to[c] = static_cast<T>(work.pixels[r * map.width + c] / static_cast<double>(pooled));
      }
    }
  }

  REGARD_NOINLINE void write_top(const SummaryProblem& problem, const SummaryTask& task,
                                 const SummaryStrip<T>& strip) {
    const std::int64_t count = problem.top_count;
    settle_top(strip.top, count, kPitch);
    for (int lane = 0; lane < strip.rows; ++lane) {
      const std::int64_t row = strip.first_row + lane;
      T* const weights = static_cast<T*>(task.top_weights) + row * problem.top_weights.row_stride;
      std::int64_t* const keys = task.top_keys + row * problem.top_keys.row_stride;
      const bool is_nan = strip.largest[lane] != strip.largest[lane];
      for (std::int64_t i = 0; i < count; ++i) {
        weights[i] = is_nan ? kNaN : strip.top.weights[i * kPitch + lane];
        keys[i] = is_nan ? -1 : strip.top.keys[i * kPitch + lane];
      }
    }
  }
};

}  // namespace
}  // namespace regard
