// Linear attention (../../problem/linear.hpp), chunk by chunk: the tokens of a chunk see each other
// through scores, as in attention, and the tokens before the chunk through the state.
//
//   for a chunk of 64 tokens
//     keys, their decays, and how they change each other      decay.hpp, decay_by_column.hpp
//     for query heads, as many as 64 rows have                their weights of the chunk's keys
//       for a panel of columns of the values                  panel.hpp
//
// A few tokens are a short chunk, which reads the state where it is and writes it where it belongs.
#pragma once

#include "../kernel_table.hpp"
#include "decay_by_column.hpp"
#include "panel.hpp"

namespace regard {
namespace {

template <class Shape>
struct Linear {
  using T = typename Shape::Element;
  using Workspace = LinearWorkspace<Shape>;
  using OfTokens = DecayOfTokens<Shape>;
  using ByColumn = DecayByColumn<Shape>;
  static constexpr std::int64_t kScores = Workspace::kScores;
  // Chunks of at most this many tokens use the state in place: its rows are far apart in L1.
  static constexpr std::int64_t kFewTokens = 8;

  static constexpr PassKernels<LinearProblem, LinearTask> kernels() {
    return {
        .workspace_bytes = workspace_bytes, .begin = begin, .advance = advance, .finish = finish};
  }

  static std::int64_t workspace_bytes(const LinearProblem& problem, std::int64_t columns) {
    return Workspace(problem, columns, nullptr).bytes;
  }

  static SeenKeys begin(const LinearProblem& problem, const LinearTask& task, void* memory) {
    if (!uses_state_in_place(problem, task)) {
      const Workspace work = workspace_of(problem, task, memory);
      for_panels<Shape>(columns_of(task), [&](std::int64_t column, int vectors) {
        const Rows<T> panel = panel_of(problem, work, column, vectors);
        const std::int64_t columns = present(task, column, panel.stride);
        if (!task.state)
          return copy_padded<T, T>(nullptr, 0, 1, 0, 0, panel.data, problem.head_dim, panel.stride);
        with_input_element<T>(problem.state.element, [&](auto element) {
          using From = typename decltype(element)::Type;
          const Operand& state = problem.state;
          copy_padded<T>(static_cast<const From*>(task.state) +
                             (task.column_begin + column) * state.column_stride,
                         state.row_stride, state.column_stride, problem.head_dim, columns,
                         panel.data, problem.head_dim, panel.stride);
        });
      });
    }
    return {{0, 0}, {0, task.tokens}};
  }

  static void advance(const LinearProblem& problem, const LinearTask& task, std::int64_t first,
                      std::int64_t end, void* memory) {
    const Workspace work = workspace_of(problem, task, memory);
    for (; first < end; first += kChunk)
      run_chunk(problem, task, first, end - first < kChunk ? end - first : kChunk, work);
  }

  static void finish(const LinearProblem& problem, const LinearTask& task, void* memory) {
    if (!task.new_state || uses_state_in_place(problem, task)) return;
    const Workspace work = workspace_of(problem, task, memory);
    const Operand& state = problem.new_state;
    for_panels<Shape>(columns_of(task), [&](std::int64_t column, int vectors) {
      const Rows<T> panel = panel_of(problem, work, column, vectors);
      T* const to =
          static_cast<T*>(task.new_state) + (task.column_begin + column) * state.column_stride;
      for (std::int64_t row = 0; row < problem.head_dim; ++row)
        write_row<T>(to + row * state.row_stride, state.column_stride,
                     present(task, column, panel.stride),
                     [&](std::int64_t at) { return load(panel.at(row) + at); });
    });
  }

  // The gradients (backward.hpp) call the following too.

  REGARD_NOINLINE void prepare_keys(const LinearProblem& problem, const LinearTask& task,
                                    std::int64_t first, std::int64_t count, const Workspace& work) {
    const bool decays = task.decay != nullptr, by_column = problem.decays_by_column;
    const Rows<T> keys{work.keys, work.stride}, rows{work.rows, work.stride};
    T to_end[kChunk];
    copy_tokens<T>(problem.key, task.key, first, count, problem.head_dim, keys.data, count,
                   work.stride);
    if (!decays)
      for (std::int64_t row = 0; row < problem.head_dim; ++row) work.state_decay[row] = T(1);
    if (by_column)
      ByColumn::prepare(problem, task, first, count, work);
    else if (count > 1)  // a single key is its own transpose
      transpose_rows<T>(count, keys, problem.head_dim, {work.transposed, kScores});
    if (decays && !by_column) OfTokens::prepare(problem, task, first, count, work, to_end);
    if (task.beta) {
      copy_tokens<T>(problem.beta, task.beta, first, count, 1, work.beta, count, 1);
      if (count > 1) score(problem, count, work, keys, {work.of_keys, kScores});
      for (std::int64_t i = 0; i < count; ++i) {
        const Vec<T> beta = broadcast(-work.beta[i]);
        for (std::int64_t j = 0; j < i; j += kLanes<T>) {
          T* const factor = work.of_keys + i * kScores + j;
          store(factor, load(factor) * beta);
        }
      }
      for (std::int64_t at = 0; at < count * work.stride; at += kLanes<T>)
        store(rows.data + at, load(keys.data + at));
      decay_rows(problem, count, work, rows);
    }
    if (decays && !by_column && count > 1) multiply_rows_by<T>(count, keys, to_end);
  }

  // Products of rows with keys, decayed from the key to the row.
  REGARD_INLINE void score(const LinearProblem& problem, std::int64_t count, const Workspace& work,
                           const Rows<T>& rows, const Rows<T>& scores) {
    if (problem.decays_by_column) return ByColumn::score(problem, count, work, rows, scores);
    const Rows<const T> keys =
        count > 1 ? Rows<const T>{work.transposed, kScores} : Rows<const T>{work.keys, 1};
    multiply_triangle<Shape>(count, {rows.data, rows.stride}, keys, problem.head_dim, scores);
    if (problem.decay.data) decay_scores(count, work, scores);
  }

  // Multiplies scores by the decays of tokens from the key to the row.
  REGARD_INLINE void decay_scores(std::int64_t count, const Workspace& work,
                                  const Rows<T>& scores) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j <= i; j += kLanes<T>)
        store(scores.at(i) + j, load(scores.at(i) + j) * load(work.pair_decays + i * kScores + j));
  }

  REGARD_INLINE void decay_rows(const LinearProblem& problem, std::int64_t count,
                                const Workspace& work, const Rows<T>& rows) {
    if (problem.decays_by_column)
      ByColumn::decay_rows(count, work, rows);
    else if (problem.decay.data)
      multiply_rows_by<T>(count, rows, work.row_decays);
  }

 private:
  // Query heads that are computed together; their rows follow each other.
  struct Heads {
    std::int64_t first;
    std::int64_t count;
    bool are_first;
    bool are_last;
  };

  REGARD_INLINE std::int64_t columns_of(const LinearTask& task) {
    return task.column_end - task.column_begin;
  }
  REGARD_INLINE std::int64_t present(const LinearTask& task, std::int64_t column,
                                     std::int64_t width) {
    const std::int64_t left = columns_of(task) - column;
    return left < width ? left : width;
  }
  REGARD_INLINE Workspace workspace_of(const LinearProblem& problem, const LinearTask& task,
                                       void* memory) {
    return Workspace(problem, columns_of(task), memory);
  }
  REGARD_INLINE Rows<T> panel_of(const LinearProblem& problem, const Workspace& work,
                                 std::int64_t column, int vectors) {
    return {work.state + problem.head_dim * column, vectors * kLanes<T>};
  }

  REGARD_INLINE bool uses_state_in_place(const LinearProblem& problem, const LinearTask& task) {
    constexpr std::int64_t kOne = kLanes<T>, kTwo = 2 * kLanes<T>;
    const std::int64_t columns = columns_of(task);
    const bool fills_panels =
        Shape::kTrims ? columns % kOne == 0 && columns != kOne : columns % kTwo == 0;
    return task.tokens <= kFewTokens && task.tokens > 0 && task.state && fills_panels &&
           is_stored_as<T>(problem.state.element) && problem.state.column_stride == 1 &&
           (!task.new_state || problem.new_state.column_stride == 1);
  }

  REGARD_NOINLINE void run_chunk(const LinearProblem& problem, const LinearTask& task,
                                 std::int64_t first, std::int64_t count, const Workspace& work) {
    const std::int64_t group = problem.heads / problem.kv_heads;
    const std::int64_t together = kChunk / count < group ? kChunk / count : group;
    prepare_keys(problem, task, first, count, work);
    std::int64_t head = 0;
    do {  // without query heads too, since keys change the state
      const Heads heads{head, group - head < together ? group - head : together, head == 0,
                        head + together >= group};
      prepare_queries(problem, task, heads, first, count, work);
      for_panels<Shape>(columns_of(task), [&](std::int64_t column, int vectors) {
        with_vectors<Shape>(vectors, [&](auto width) {
          run_panel<width.value>(problem, task, heads, first, count, column, work);
        });
      });
    } while ((head += together) < group);
  }

  REGARD_NOINLINE void prepare_queries(const LinearProblem& problem, const LinearTask& task,
                                       const Heads& heads, std::int64_t first, std::int64_t count,
                                       const Workspace& work) {
    const std::int64_t before = task.beta && heads.are_first ? count : 0;
    for (std::int64_t head = 0; head < heads.count; ++head) {
      const Rows<T> rows{work.rows + (before + head * count) * work.stride, work.stride};
      const void* const query =
          static_cast<const char*>(task.query) +
          (heads.first + head) * problem.query.head_stride * bytes_of(problem.query.element);
      copy_tokens<T>(problem.query, query, first, count, problem.head_dim, rows.data, count,
                     work.stride);
      score(problem, count, work, rows, {work.weights + head * count * kScores, kScores});
      decay_rows(problem, count, work, rows);
    }
  }

  template <int kVectors>
  REGARD_NOINLINE void run_panel(const LinearProblem& problem, const LinearTask& task,
                                 const Heads& heads, std::int64_t first, std::int64_t count,
                                 std::int64_t column, const Workspace& work) {
    using Panel = LinearPanel<Shape, kVectors>;
    constexpr std::int64_t kWidth = Panel::kWidth;
    const std::int64_t columns = present(task, column, kWidth), at = task.column_begin + column;
    T* const updates = work.updates + kChunk * column;
    const Rows<T> own = panel_of(problem, work, column, kVectors);
    const bool in_place = uses_state_in_place(problem, task);
    const Rows<const T> state =
        in_place ? Rows<const T>{static_cast<const T*>(task.state) + at, problem.state.row_stride}
                 : Rows<const T>{own.data, own.stride};
    const std::int64_t predicted = task.beta && heads.are_first ? count : 0;
    multiply_panel<Shape, kVectors>(predicted + heads.count * count, {work.rows, work.stride},
                                    state, problem.head_dim, {work.products, kWidth});
    if (heads.are_first) {
      const Operand& value = problem.value;
      const void* const values =
          static_cast<const char*>(task.value) + at * value.column_stride * bytes_of(value.element);
      copy_tokens<T>(value, values, first, count, columns, updates, count, kWidth);
      if (task.beta) Panel::substitute(count, work.products, work.of_keys, work.beta, updates);
    }
    // From the last, since a tile also changes the first rows of the next head.
    for (std::int64_t head = heads.count - 1; head >= 0; --head) {
      T* const outputs = work.products + (predicted + head * count) * kWidth;
      Panel::finish_outputs(count, static_cast<T>(problem.scale),
                            work.weights + head * count * kScores, updates, outputs);
      write_outputs(problem, task, heads.first + head, first, count, at, columns,
                    {outputs, kWidth});
    }
    if (!heads.are_last || (!task.new_state && first + count == task.tokens)) return;
    const Rows<T> to =
        in_place ? Rows<T>{static_cast<T*>(task.new_state) + at, problem.new_state.row_stride}
                 : own;
    Panel::update_state(count, problem.head_dim, {work.ends, work.stride}, work.state_decay,
                        updates, state, to);
  }

  REGARD_NOINLINE void write_outputs(const LinearProblem& problem, const LinearTask& task,
                                     std::int64_t head, std::int64_t first, std::int64_t count,
                                     std::int64_t column, std::int64_t columns,
                                     const Rows<T>& rows) {
    const Operand& output = problem.output;
    with_result_element<T>(output.element, [&](auto element) {
      using To = typename decltype(element)::Type;
      To* const to =
          static_cast<To*>(task.output) + head * output.head_stride + column * output.column_stride;
      for (std::int64_t i = 0; i < count; ++i)
        write_row<T>(to + (first + i) * output.row_stride, output.column_stride, columns,
                     [&](std::int64_t place) { return load(rows.at(i) + place); });
    });
  }
};

}  // namespace
}  // namespace regard
