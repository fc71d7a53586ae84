// c = a b, for the rows, columns and interval of depth of one task. Intervals begin at multiples of
// kDepth and are processed in order.
//
//   for a block of depth                          summed in order, added to c block by block
//     pack b's columns into panels of lanes       unless they are near; a panel fits in L1
//     for a panel, for a tile of rows             block.hpp
//
// A narrow b is expanded while it is packed (expand.hpp). Rows of a and b are read in place if they
// are contiguous and close together; otherwise they are copied one block at a time. If several
// tasks read the same rows or columns, these are packed once for all tasks (a wave).
#pragma once

#include "block.hpp"
#include "few_rows.hpp"
#include "few_rows_of_narrow.hpp"
#include "row_tiles.hpp"
#include "../pack.hpp"
#include "../../problem/matmul.hpp"
#include "../kernel_table.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

template <class Shape>
struct Matmul {
  using T = typename Shape::Element;
  using TaskBlock = MatmulBlock<Shape>;
  using FewRows = MatmulFewRows<Shape>;
  using FewRowsOfNarrow = MatmulFewRowsOfNarrow<Shape>;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kPanel = Shape::kStripLanes;
  // The maximum size of a task: blocks of a and b of 128 and 192 KB (float, AVX-512) share L2 with
  // 384 KB of c, and each copied element is used 384 or 256 times.
  static constexpr std::int64_t kTaskRows = 256;
  static constexpr std::int64_t kPanels = 8;
  static constexpr std::int64_t kTaskColumns = kPanels * kPanel;
  static constexpr std::int64_t kDepth = kTuning.matmul_depth;

  // Rows within this many bytes, the minimum size of L1, are read in place. Rows farther apart use
  // only a few sets of L1, or are not prefetched by the processor.
  static constexpr std::int64_t kNearBytes = 32 * 1024;
  // Copying a's rows pays off only with more panels than this.
  static constexpr std::int64_t kFewPanels = 2;

  static_assert(FewRows::kTileElements <= TaskBlock::kTileElements, "few rows share the tile");
  static_assert(FewRowsOfNarrow::kPanelElements <= kScaleGroup * kTaskColumns,
                "few rows share the panels");

  struct Workspace {
    T* panels;  // [panel][depth][lanes]
    T* rows;    // [tile][depth][tile rows]
    T* tile;    // [tile rows][lanes]
  };

  static constexpr MatmulKernels kernels() {
    return {
        .takes_few_rows = takes_few_rows,
        .workspace_bytes = workspace_bytes,
        .run = run,
        .wave_rows_bytes = wave_rows_bytes,
        .wave_panels_bytes = wave_panels_bytes,
        .pack_rows = pack_rows,
        .pack_panels = pack_panels,
        .run_wave = run_wave,
        .tile_rows = kRows,
        .task_rows = kTaskRows,
        .task_columns = kTaskColumns,
        .panel_columns = kPanel,
        .depth = kDepth,
    };
  }

  static bool takes_few_rows(const MatmulProblem& problem) {
    const Operand& b = problem.b;
    return problem.rows <= kFewRows && problem.a.column_stride == 1 &&
           (!is_stored_as<T>(b.element) || b.column_stride == 1 || b.row_stride == 1);
  }

  static std::int64_t workspace_bytes(const MatmulProblem& problem) {
    const std::int64_t depth = block_depth(problem);
    return static_cast<std::int64_t>(sizeof(T)) *
           (depth * kTaskColumns + depth * task_rows(problem) + TaskBlock::kTileElements);
  }

  static void run(const MatmulProblem& problem, const MatmulTask& task, void* memory) {
    Workspace work;
    const std::int64_t block = block_depth(problem);
    work.panels = static_cast<T*>(memory);
    work.tile = work.panels + block * kTaskColumns;
    work.rows = work.tile + TaskBlock::kTileElements;
    if (problem.depth == 0) return clear_product(problem, task);
    if (takes_few_rows(problem))
      return for_rows(task.row_end - task.row_begin, [&](auto rows) {
        if (is_stored_as<T>(problem.b.element))
          FewRows::template run<rows.value>(problem, task, work.tile, work.panels);
        else
          FewRowsOfNarrow::template run<rows.value>(problem, task, work.tile, work.panels);
      });
    for (std::int64_t k = task.depth_begin; k < task.depth_end; k += block) {
      const std::int64_t depth = task.depth_end - k < block ? task.depth_end - k : block;
      const Block<T> part{rows_of(problem, task, k, depth, work.rows),
                          columns_of(problem, task, k, depth, work.panels), depth, k > 0};
      multiply_and_prefetch(problem, task, k, part, work.tile);
    }
  }

  // A wave's memory, in bytes: [block of depth][tile][depth][tile rows] and
  // [block][panel][depth][lanes].
  static std::int64_t wave_rows_bytes(const MatmulWave& wave) {
    return static_cast<std::int64_t>(sizeof(T)) * wave_rows(wave) *
           round_up(wave.depth_end - wave.depth_begin, kDepth);
  }
  static std::int64_t wave_panels_bytes(const MatmulWave& wave) {
    return static_cast<std::int64_t>(sizeof(T)) * wave_columns(wave) *
           round_up(wave.depth_end - wave.depth_begin, kDepth);
  }

  // Copy a task's rows or columns, for one block of depth, to their place in the wave.
  static void pack_rows(const MatmulProblem& problem, const MatmulTask& task,
                        const MatmulWave& wave) {
    const Operand& a = problem.a;
    const std::int64_t depth = task.depth_end - task.depth_begin;
    const T* from = static_cast<const T*>(task.a) + task.row_begin * a.row_stride +
                    task.depth_begin * a.column_stride;
    T* to = block_of_rows(wave, task.depth_begin) + (task.row_begin - wave.row_begin) * depth;
    const std::int64_t rows = task.row_end - task.row_begin;
    pack_row_tiles<T, kRows>(from, a.row_stride, a.column_stride, rows, depth, to);
  }
  static void pack_panels(const MatmulProblem& problem, const MatmulTask& task,
                          const MatmulWave& wave) {
    const std::int64_t depth = task.depth_end - task.depth_begin;
    T* to =
        block_of_panels(wave, task.depth_begin) + (task.column_begin - wave.column_begin) * depth;
    pack_panels_at(problem, task, task.depth_begin, depth, to);
  }

  // Computes a task within a wave. `memory` is as for `run`.
  static void run_wave(const MatmulProblem& problem, const MatmulTask& task, const MatmulWave& wave,
                       void* memory) {
    for (std::int64_t k = wave.depth_begin; k < wave.depth_end; k += kDepth) {
      const std::int64_t depth = wave.depth_end - k < kDepth ? wave.depth_end - k : kDepth;
      const T* rows = block_of_rows(wave, k) + (task.row_begin - wave.row_begin) * depth;
      const T* panels = block_of_panels(wave, k) + (task.column_begin - wave.column_begin) * depth;
      const Block<T> block{{nullptr, 0, 0, rows}, {nullptr, 0, 0, panels}, depth, k > 0};
      TaskBlock::run(problem, task, block, static_cast<T*>(memory), [](std::int64_t) {});
    }
  }

 private:
  static std::int64_t block_depth(const MatmulProblem& problem) {
    return problem.depth < kDepth ? problem.depth : kDepth;
  }

  static std::int64_t task_rows(const MatmulProblem& problem) {
    return round_up(problem.rows < kTaskRows ? problem.rows : kTaskRows, kRows);
  }

  static std::int64_t wave_rows(const MatmulWave& wave) {
    return round_up(wave.row_end - wave.row_begin, kRows);
  }
  static std::int64_t wave_columns(const MatmulWave& wave) {
    return round_up(wave.column_end - wave.column_begin, kPanel);
  }
  static T* block_of_rows(const MatmulWave& wave, std::int64_t k) {
    return static_cast<T*>(wave.rows) + (k - wave.depth_begin) * wave_rows(wave);
  }
  static T* block_of_panels(const MatmulWave& wave, std::int64_t k) {
    return static_cast<T*>(wave.panels) + (k - wave.depth_begin) * wave_columns(wave);
  }

  static void clear_product(const MatmulProblem& problem, const MatmulTask& task) {
    for (std::int64_t row = task.row_begin; row < task.row_end; ++row)
      for (std::int64_t column = task.column_begin; column < task.column_end; ++column)
        static_cast<T*>(task.c)[row * problem.c.row_stride + column * problem.c.column_stride] =
            T(0);
  }

  static void pack_panels_at(const MatmulProblem& problem, const MatmulTask& task, std::int64_t k,
                             std::int64_t depth, T* panels) {
    for (std::int64_t column = task.column_begin; column < task.column_end; column += kPanel)
      pack_panel(problem, task, k, depth, column, panels + (column - task.column_begin) * depth);
  }

  // Packs panel[k][lane], with zeros in lanes beyond the last column.
  REGARD_NOINLINE void pack_panel(const MatmulProblem& problem, const MatmulTask& task,
                                  std::int64_t k, std::int64_t depth, std::int64_t column,
                                  T* panel) {
    const Operand& b = problem.b;
    const int columns = TaskBlock::columns_from(task, column);
    if (!is_stored_as<T>(b.element))
      return expand_panel<T, Shape::kVectors>(problem, task, k, depth, column, columns, 0, panel);
    const T* from = static_cast<const T*>(task.b) + k * b.row_stride + column * b.column_stride;
    if (b.column_stride == 1) {
      copy_padded(from, b.row_stride, 1, depth, columns, panel, depth, kPanel);
      return;
    }
    const T* lanes[kPanel];
    for (int lane = 0; lane < columns; ++lane) lanes[lane] = from + lane * b.column_stride;
    rows_to_lanes<T>(lanes, columns, b.row_stride, depth, panel, kPanel, Identity{});
  }

  static bool lie_near(std::int64_t rows, std::int64_t row_stride) {
    return row_stride < kNearBytes && -row_stride < kNearBytes &&
           rows * (row_stride < 0 ? -row_stride : row_stride) *
                   static_cast<std::int64_t>(sizeof(T)) <=
               kNearBytes;
  }

  static BlockPart<T> rows_of(const MatmulProblem& problem, const MatmulTask& task, std::int64_t k,
                              std::int64_t depth, T* copied) {
    const Operand& a = problem.a;
    const T* rows =
        static_cast<const T*>(task.a) + task.row_begin * a.row_stride + k * a.column_stride;
    const std::int64_t count = task.row_end - task.row_begin;
    const bool is_read_little = task.column_end - task.column_begin <= kFewPanels * kPanel;
    const bool is_in_place =
        a.column_stride == 1 && (is_read_little || lie_near(count, a.row_stride));
    const std::int64_t whole = is_in_place ? count / kRows * kRows : 0;
    pack_row_tiles<T, kRows>(rows + whole * a.row_stride, a.row_stride, a.column_stride,
                             count - whole, depth, copied);
    return {rows, a.row_stride, whole, copied};
  }

  static BlockPart<T> columns_of(const MatmulProblem& problem, const MatmulTask& task,
                                 std::int64_t k, std::int64_t depth, T* copied) {
    const Operand& b = problem.b;
    const T* columns =
        static_cast<const T*>(task.b) + k * b.row_stride + task.column_begin * b.column_stride;
    const bool is_near =
        is_stored_as<T>(b.element) && b.column_stride == 1 && lie_near(depth, b.row_stride);
    const std::int64_t whole =
        is_near ? (task.column_end - task.column_begin) / kPanel * kPanel : 0;
    MatmulTask rest = task;
    rest.column_begin += whole;
    pack_panels_at(problem, rest, k, depth, copied);
    return {columns, b.row_stride, whole, copied};
  }

  REGARD_NOINLINE void multiply_and_prefetch(const MatmulProblem& problem, const MatmulTask& task,
                                             std::int64_t k, const Block<T>& block, T* tile) {
    const std::int64_t tiles = (task.row_end - task.row_begin + kRows - 1) / kRows;
    const std::int64_t next_depth = k + block.depth < problem.depth ? block.depth : 0;
    TaskBlock::run(problem, task, block, tile, [&](std::int64_t number) {
      if (next_depth != 0) prefetch_next(problem, task, k + block.depth, next_depth, number, tiles);
    });
  }

  // Prefetches the data that the next block of depth will copy, one share with each tile of rows.
  // Both matrices are read in pieces too short for the processor to prefetch.
  REGARD_INLINE void prefetch_next(const MatmulProblem& problem, const MatmulTask& task,
                                   std::int64_t k, std::int64_t depth, std::int64_t tile,
                                   std::int64_t tiles) {
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
    const Operand &a = problem.a, &b = problem.b;
    if (a.column_stride == 1) {
      const std::int64_t row = tile * kRows;
      const T* from = static_cast<const T*>(task.a) + (task.row_begin + row) * a.row_stride + k;
      const std::int64_t left = task.row_end - task.row_begin - row;
      for (std::int64_t r = 0; r < kRows && r < left; ++r)
        for (std::int64_t i = 0; i < depth; i += kLine)
          __builtin_prefetch(from + r * a.row_stride + i, 0, 2);
    }
    if (b.column_stride == 1 && is_stored_as<T>(b.element)) {
      for (std::int64_t i = depth * tile / tiles; i < depth * (tile + 1) / tiles; ++i)
        for (std::int64_t j = task.column_begin; j < task.column_end; j += kLine)
          __builtin_prefetch(static_cast<const T*>(task.b) + (k + i) * b.row_stride + j, 0, 2);
    }
  }
};

}  // namespace
}  // namespace regard
