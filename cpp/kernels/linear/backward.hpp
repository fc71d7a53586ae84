// The gradients of linear attention. The states at the starts of the chunks are computed first, and
// then the gradients of the chunks, from the last to the first.
//
// Queries and, with a beta, negative keys are rows x that read the state S at the start of the chunk
// and the updates U. With the decays F, and D from the start of the chunk,
//
//   results of rows = (D x) S + W U       W_ij = (x_i . k_j) F_ij, for keys j <= i of queries, and
//                                         j < i of keys
//   S' = D_end S + E^T U                  E: keys, decayed to the end
//
// The result of a query is an output. That of a key, plus its value, is N, and U = beta N: a system
// of equations for N. Without a beta, U are the values. With the gradients g of the rows' results
// and those of S', denoted by d,
//
//   dU = W^T g of queries + E dS'         and with a beta, g of keys, beta dU and W^T g of keys
//   dS = D_end dS' + (D x)^T g
//   dx = D (g S^T) + (dW F) k             dW = g U^T
//   dk = (dW F)^T x + decay to the end of (U dS'^T)
//
// A sum G of decays, in whose exponential x and k occur, has the gradient x dx - k dk. What cancels
// there is left out: the pairs of a token with itself, and of the end of the chunk with keys that
// follow the decay. Otherwise strong decays, whose gradients are tiny, would have the rounding
// errors of these pairs.
#pragma once

#include "backward_workspace.hpp"
#include "gradients_by_column.hpp"
#include "linear.hpp"

namespace regard {
namespace {

template <class Shape>
struct LinearBackward {
  using T = typename Shape::Element;
  using Problem = LinearBackwardProblem;
  using Task = LinearBackwardTask;
  using Workspace = LinearBackwardWorkspace<Shape>;
  using Forward = Linear<Shape>;
  using ByColumn = GradientsByColumn<Shape>;
  static constexpr std::int64_t kScores = Workspace::kScores;

  static constexpr PassKernels<Problem, Task> kernels() {
    return {
        .workspace_bytes = workspace_bytes, .begin = begin, .advance = advance, .finish = finish};
  }

  static std::int64_t workspace_bytes(const Problem& problem, std::int64_t) {
    return Workspace(problem.forward, nullptr).bytes;
  }

  static SeenKeys begin(const Problem& problem, const Task& task, void* memory) {
    const Workspace work(problem.forward, memory);
    copy_state(problem.forward.state, task.forward.state, problem, work, work.states);
    copy_state(problem.grad_new_state, task.grad_new_state, problem, work, work.grad_state);
    return {{0, 0}, {0, 2 * kChunk * chunks_of(task)}};
  }

  static void advance(const Problem& problem, const Task& task, std::int64_t first,
                      std::int64_t end, void* memory) {
    const Workspace work(problem.forward, memory);
    const std::int64_t chunks = chunks_of(task);
    for (; first < end; first += kChunk) {
      const std::int64_t step = first / kChunk;
      const Chunk chunk(task, step < chunks ? step : 2 * chunks - 1 - step);
      if (step >= chunks)
        run_chunk(problem, task, chunk, work);
      else if (step + 1 < chunks)
        add_state(problem, task, chunk, work);
    }
  }

  static void finish(const Problem& problem, const Task& task, void* memory) {
    if (!task.grad_state) return;
    const Workspace work(problem.forward, memory);
    write(problem.grad_state, task.grad_state, 0, problem.forward.head_dim,
          problem.forward.value_dim, work.grad_state);
  }

 private:
  struct Chunk {
    std::int64_t index;
    std::int64_t first;
    std::int64_t count;
    Chunk(const Task& task, std::int64_t number) : index(number), first(number * kChunk) {
      const std::int64_t left = task.forward.tokens - first;
      count = left < kChunk ? left : kChunk;
    }
  };

  REGARD_INLINE std::int64_t chunks_of(const Task& task) {
    return (task.forward.tokens + kChunk - 1) / kChunk;
  }
  REGARD_INLINE Rows<T> state_of(const Workspace& work, std::int64_t chunk) {
    return {work.states.at(chunk * work.state_rows), work.states.stride};
  }

  REGARD_NOINLINE void copy_state(const Operand& operand, const void* data, const Problem& problem,
                                  const Workspace& work, const Rows<T>& to) {
    const LinearProblem& forward = problem.forward;
    if (!data) return copy_padded<T, T>(nullptr, 0, 1, 0, 0, to.data, work.state_rows, to.stride);
    copy_tokens<T>(operand, data, 0, forward.head_dim, forward.value_dim, to.data, work.state_rows,
                   to.stride);
  }

  REGARD_NOINLINE void write(const Operand& operand, void* data, std::int64_t first,
                             std::int64_t count, std::int64_t columns, const Rows<T>& rows) {
    for (std::int64_t i = 0; i < count; ++i)
      write_row<T>(static_cast<T*>(data) + (first + i) * operand.row_stride, operand.column_stride,
                   columns, [&](std::int64_t at) { return load(rows.at(i) + at); });
  }

  // Sets keys, their decays, and the updates of the chunk.
  REGARD_NOINLINE void prepare(const Problem& problem, const Task& task, const Chunk& chunk,
                               const Workspace& work) {
    const LinearProblem& forward = problem.forward;
    LinearTask keys = task.forward;
    keys.beta = nullptr;
    Forward::prepare_keys(forward, keys, chunk.first, chunk.count, work.chunk);
    copy_tokens<T>(forward.key, keys.key, chunk.first, chunk.count, forward.head_dim,
                   work.keys.data, kChunk, work.keys.stride);
    const Rows<T>& values = task.forward.beta ? work.results : work.updates;
    copy_tokens<T>(forward.value, keys.value, chunk.first, chunk.count, forward.value_dim,
                   values.data, kChunk, values.stride);
    if (!task.forward.beta) return;
    copy_tokens<T>(forward.beta, task.forward.beta, chunk.first, chunk.count, 1, work.chunk.beta,
                   kChunk, 1);
    const Rows<T> factors{work.chunk.of_keys, kScores};
    set_rows_of_keys(problem, chunk, work);
    Forward::score(forward, chunk.count, work.chunk, work.x, factors);
    keep_earlier(chunk.count, factors, 0);
    product<Shape, false>(chunk.count, work.decayed, state_of(work, chunk.index), forward.head_dim,
                          forward.value_dim, work.results, Into::added);
    solve<Shape, false>(chunk.count, factors, work.chunk.beta, forward.value_dim, work.results,
                        work.updates);
  }

  // Sets the state of the next chunk.
  REGARD_NOINLINE void add_state(const Problem& problem, const Task& task, const Chunk& chunk,
                                 const Workspace& work) {
    prepare(problem, task, chunk, work);
    const Rows<T> from = state_of(work, chunk.index), to = state_of(work, chunk.index + 1);
    for (std::int64_t row = 0; row < problem.forward.head_dim; ++row)
      for (std::int64_t at = 0; at < to.stride; at += kLanes<T>)
        store(to.at(row) + at, load(from.at(row) + at) * broadcast(work.chunk.state_decay[row]));
    product<Shape, true>(problem.forward.head_dim, {work.chunk.ends, work.chunk.stride},
                         work.updates, chunk.count, problem.forward.value_dim, to, Into::added);
  }

  REGARD_NOINLINE void set_rows_of_keys(const Problem& problem, const Chunk& chunk,
                                        const Workspace& work) {
    for (std::int64_t at = 0; at < chunk.count * work.x.stride; at += kLanes<T>)
      store(work.x.data + at, -load(work.keys.data + at));
    decay_rows(problem, chunk, work);
  }

  // Sets the rows of a query head, and the gradients of their results.
  REGARD_NOINLINE void set_rows_of_queries(const Problem& problem, const Task& task,
                                           std::int64_t head, const Chunk& chunk,
                                           const Workspace& work) {
    const LinearProblem& forward = problem.forward;
    const auto copy = [&](const Operand& operand, const void* data, std::int64_t columns,
                          const Rows<T>& to) {
      data =
          static_cast<const char*>(data) + head * operand.head_stride * bytes_of(operand.element);
      copy_tokens<T>(operand, data, chunk.first, chunk.count, columns, to.data, chunk.count,
                     to.stride);
    };
    copy(forward.query, task.forward.query, forward.head_dim, work.x);
    copy(problem.grad_output, task.grad_output, forward.value_dim, work.given);
    const Vec<T> scale = broadcast(static_cast<T>(forward.scale));
    for (std::int64_t at = 0; at < chunk.count * work.given.stride; at += kLanes<T>)
      store(work.given.data + at, load(work.given.data + at) * scale);
    decay_rows(problem, chunk, work);
  }

  REGARD_INLINE void decay_rows(const Problem& problem, const Chunk& chunk, const Workspace& work) {
    for (std::int64_t at = 0; at < chunk.count * work.x.stride; at += kLanes<T>)
      store(work.decayed.data + at, load(work.x.data + at));
    Forward::decay_rows(problem.forward, chunk.count, work.chunk, work.decayed);
  }

  // Sets the scores of keys from `row + offset` on to 0.
  REGARD_NOINLINE void keep_earlier(std::int64_t count, const Rows<T>& scores,
                                    std::int64_t offset) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = i + offset; j < kChunk; ++j) scores.at(i)[j] = T(0);
  }

  REGARD_NOINLINE void run_chunk(const Problem& problem, const Task& task, const Chunk& chunk,
                                 const Workspace& work) {
    const LinearProblem& forward = problem.forward;
    const std::int64_t group = forward.heads / forward.kv_heads;
    const std::int64_t dim = forward.head_dim, columns = forward.value_dim, count = chunk.count;
    const bool has_beta = task.forward.beta != nullptr, decays = task.forward.decay != nullptr;
    const Rows<T> state = state_of(work, chunk.index), factors{work.chunk.of_keys, kScores};
    prepare(problem, task, chunk, work);

    product<Shape, false>(count, {work.chunk.ends, work.chunk.stride}, work.grad_state, dim,
                          columns, work.grad_updates, Into::replaced);
    for (std::int64_t head = 0; head < group; ++head) {
      set_rows_of_queries(problem, task, head, chunk, work);
      Forward::score(forward, count, work.chunk, work.x, work.scores);
      keep_earlier(count, work.scores, 1);
      product<Shape, true>(count, work.scores, work.given, count, columns, work.grad_updates,
                           Into::added, Terms::lower);
    }
    const Rows<T>& grad_values = has_beta ? work.grad_values : work.grad_updates;
    if (has_beta) {
      solve<Shape, true>(count, factors, work.chunk.beta, columns, work.grad_updates, grad_values);
      for (std::int64_t i = 0; i < count; ++i)
        static_cast<T*>(task.grad_beta)[(chunk.first + i) * problem.grad_beta.row_stride] =
            sum_of_products(columns, work.grad_updates.at(i), work.results.at(i));
    }
    write(problem.grad_value, task.grad_value, chunk.first, count, columns, grad_values);

    transpose_rows<T>(count, work.updates, columns, work.turned_updates);
    transpose_matrix<T>(dim, state, columns, work.turned_state);
    transpose_matrix<T>(dim, work.grad_state, columns, work.turned_grad_state);
    product<Shape, false>(count, work.updates, work.turned_grad_state, columns, dim, work.grad_ends,
                          Into::replaced);
    clear(work.grad_keys.data, kChunk * work.grad_keys.stride);
    clear(work.grad_own.data, kChunk * work.grad_own.stride);
    if (decays) begin_decays(problem, work, state);
    if (forward.decays_by_column) clear(work.sums_of_parts, kParts * kChunk * work.keys.stride);

    for (std::int64_t head = 0; head < group; ++head) {
      set_rows_of_queries(problem, task, head, chunk, work);
      add_rows(problem, chunk, work, work.given);
      add_own_keys(chunk, work);
      write(problem.grad_query,
            static_cast<T*>(task.grad_query) + head * problem.grad_query.head_stride, chunk.first,
            count, dim, work.grad_x);
    }
    if (has_beta) {
      set_rows_of_keys(problem, chunk, work);
      add_rows(problem, chunk, work, grad_values);
    } else {
      clear(work.grad_x.data, count * work.grad_x.stride);
    }
    finish_keys(problem, task, chunk, work);
    if (decays) write_decays(problem, task, chunk, work);
  }

  // Adds the part of rows in the gradients of earlier keys, state and sums, and sets the rows' own
  // gradients, without those from the keys of their tokens.
  REGARD_NOINLINE void add_rows(const Problem& problem, const Chunk& chunk, const Workspace& work,
                                const Rows<T>& given) {
    const LinearProblem& forward = problem.forward;
    const std::int64_t dim = forward.head_dim, columns = forward.value_dim, count = chunk.count;
    product<Shape, true>(dim, work.decayed, given, count, columns, work.grad_state, Into::added);
    product<Shape, false>(count, given, work.turned_state, columns, dim, work.grad_x,
                          Into::replaced);
    Forward::decay_rows(forward, count, work.chunk, work.grad_x);
    const Rows<T>& scores = work.grad_scores;
    multiply_triangle<Shape>(count, {given.data, given.stride}, {work.turned_updates.data, kScores},
                             columns, scores);
    for (std::int64_t i = 0; i < count; ++i) work.own_scores[i] = scores.at(i)[i];
    if (forward.decays_by_column) {
      keep_earlier(count, scores, 0);
      ByColumn::add(forward, count, work.chunk, work.keys, work.x, scores, work.grad_x,
                    work.grad_keys, work.sums_of_parts, work.turned_scores, work.products);
    } else {
      if (forward.decay.data) Forward::decay_scores(count, work.chunk, scores);
      keep_earlier(count, scores, 0);
      product<Shape, false>(count, scores, work.keys, count, dim, work.grad_x, Into::added,
                            Terms::lower);
      product<Shape, true>(count, scores, work.x, count, dim, work.grad_keys, Into::added,
                           Terms::lower);
    }
    if (!forward.decay.data) return;
    for (std::int64_t at = 0; at < count * work.x.stride; at += kLanes<T>)
      store(work.grad_sums.data + at, fma(load(work.x.data + at), load(work.grad_x.data + at),
                                          load(work.grad_sums.data + at)));
  }

  // Adds the gradients of queries and of the keys of their tokens from each other.
  REGARD_NOINLINE void add_own_keys(const Chunk& chunk, const Workspace& work) {
    for (std::int64_t i = 0; i < chunk.count; ++i)
      for (std::int64_t at = 0; at < work.x.stride; at += kLanes<T>) {
        const Vec<T> score = broadcast(work.own_scores[i]);
        T* const of_key = work.grad_own.at(i) + at;
        T* const of_query = work.grad_x.at(i) + at;
        store(of_key, fma(score, load(work.x.at(i) + at), load(of_key)));
        store(of_query, fma(score, load(work.keys.at(i) + at), load(of_query)));
      }
  }

  // Decays the gradient of the state to the start of the chunk. Starts the gradients of sums.
  REGARD_NOINLINE void begin_decays(const Problem& problem, const Workspace& work,
                                    const Rows<T>& state) {
    clear(work.grad_sums.data, kChunk * work.grad_sums.stride);
    clear(work.sums, work.grad_sums.stride);
    for (std::int64_t row = 0; row < problem.forward.head_dim; ++row) {
      T* const own = work.grad_state.at(row);
      for (std::int64_t at = 0; at < work.grad_state.stride; at += kLanes<T>)
        store(own + at, load(own + at) * broadcast(work.chunk.state_decay[row]));
      work.sums[row] = sum_of_products(problem.forward.value_dim, own, state.at(row));
    }
  }

  // Writes the gradients of keys, whose rows have theirs in `grad_x`. Replaces those of the keys at
  // the end of the chunk by the sums of their parts in the gradients of decays.
  REGARD_NOINLINE void finish_keys(const Problem& problem, const Task& task, const Chunk& chunk,
                                   const Workspace& work) {
    const LinearProblem& forward = problem.forward;
    const std::int64_t count = chunk.count;
    const bool decays = task.forward.decay != nullptr;
    if (forward.decays_by_column)
      ByColumn::finish_keys(count, work.chunk, work.sums_of_parts, work.grad_keys);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t at = 0; at < work.keys.stride; at += kLanes<T>) {
        const Vec<T> key = load(work.keys.at(j) + at);
        Vec<T> of_end = load(work.grad_ends.at(j) + at);
        if (forward.decays_by_column)
          of_end = of_end * ByColumn::to_end(work.chunk, count, j, at);
        else if (decays)
          of_end = of_end * broadcast(work.chunk.pair_decays[(count - 1) * kScores + j]);
        T* const to = work.grad_keys.at(j) + at;
        const Vec<T> of_rows = load(to), own = load(work.grad_own.at(j) + at);
        store(to, of_rows + of_end + own - load(work.grad_x.at(j) + at));
        if (!decays) continue;
        T* const sum = work.grad_sums.at(j) + at;
        store(sum, load(sum) - key * of_rows);
        const Vec<T> before = load(work.sums + at);
        store(work.grad_ends.at(j) + at, before);
        store(work.sums + at, fma(key, of_end, before));
      }
    write(problem.grad_key, task.grad_key, chunk.first, count, forward.head_dim, work.grad_keys);
  }

  // A decay is in the sums of its token and of all later ones, and in the decay to the end of the
  // state and of all earlier keys.
  REGARD_NOINLINE void write_decays(const Problem& problem, const Task& task, const Chunk& chunk,
                                    const Workspace& work) {
    const Operand& to = problem.grad_decay;
    clear(work.sums, work.grad_sums.stride);
    for (std::int64_t i = chunk.count - 1; i >= 0; --i) {
      T* const earlier = work.grad_ends.at(i);
      for (std::int64_t at = 0; at < work.grad_sums.stride; at += kLanes<T>) {
        const Vec<T> sum = load(work.sums + at) + load(work.grad_sums.at(i) + at);
        store(work.sums + at, sum);
        store(earlier + at, load(earlier + at) + sum);
      }
      if (problem.forward.decays_by_column) continue;
      T total = 0;
      for (std::int64_t at = 0; at < problem.forward.head_dim; ++at) total += earlier[at];
      earlier[0] = total;
    }
    write(to, task.grad_decay, chunk.first, chunk.count,
          problem.forward.decays_by_column ? problem.forward.head_dim : 1, work.grad_ends);
  }

  REGARD_INLINE T sum_of_products(std::int64_t count, const T* a, const T* b) {
    Vec<T> sums{};
    for (std::int64_t at = 0; at < count; at += kLanes<T>)
      sums = fma(load(a + at), load(b + at), sums);
    T total = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) total += sums[lane];
    return total;
  }

  REGARD_INLINE void clear(T* numbers, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += kLanes<T>) store(numbers + at, Vec<T>{});
  }
};

template <class Shape>
constexpr LinearKernels linear_kernels() {
  return {.pass = Linear<Shape>::kernels(),
          .column_unit = 2 * kLanes<typename Shape::Element>,
          .backward = LinearBackward<Shape>::kernels()};
}

}  // namespace
}  // namespace regard
