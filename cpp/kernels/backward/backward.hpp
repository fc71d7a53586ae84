// The gradients of a chunk of keys of one kv head, from grad_output and the forward's lse:
//
//   dV = P^T dO    dK = scale dS^T Q    dQ = scale dS K
//
//   for a piece of the chunk's keys            K, V, dK and dV stay in L2
//     for a strip of queries                   Q and dO, in lanes and as rows, and dQ in lanes
//       for a block of the piece's keys        P and dS in L1 and L2 (block.hpp)
//         dV += P^T dO, dK += dS^T Q           a tile of keys x dimensions in registers (products.hpp)
//         dQ^T += K^T dS^T                     a tile of dimensions x queries in registers
//
// A key's gradients are summed over strips in order, a query's over the blocks of a piece, then over pieces, then over
// chunks. Nobody else adds to them, so that bits depend on the lengths alone.
#pragma once

#include "../attention/key_block.hpp"
#include "block.hpp"
#include "products.hpp"
#include "strip.hpp"
#include "table.hpp"

namespace regard {
namespace {

template <class Shape>
struct Backward {
  using T = typename Shape::Element;
  using Block = BackwardBlock<Shape>;
  using Products = BackwardProducts<Shape>;
  static constexpr int kRows = Shape::kRows;

  static constexpr BackwardKernels kernels() {
    return {
        .workspace_bytes = workspace_bytes,
        .strip_rows = Shape::kStripLanes,
        .chunk_keys = chunk_keys,
        .piece_keys = regard::piece_keys<Shape>,
        .partial_bytes = partial_bytes,
        .begin = begin,
        .advance = advance,
        .finish = finish,
        .clear = clear_keys,
        .sum_partials = sum_partials,
        .write_deltas = write_deltas,
        .add_to_bias = add_to_bias,
    };
  }

  static std::int64_t workspace_bytes(const BackwardProblem& problem) {
    return lay_out_backward<Shape>(problem, nullptr);
  }

  static std::int64_t chunk_keys(std::int64_t kv_len) {
    std::int64_t chunks = 1;
    while (chunks < kMostChunks && kv_len > 2 * chunks * kLeastChunkKeys) chunks *= 2;
    const std::int64_t keys = round_up((kv_len + chunks - 1) / chunks, kChunkUnit);
    return keys > kChunkUnit ? keys : kChunkUnit;
  }

  static std::int64_t partial_bytes(const BackwardProblem& problem, std::int64_t rows) {
    return round_up(rows, kLanes<T>) * partial_rows<Shape>(problem) * static_cast<std::int64_t>(sizeof(T));
  }

  static void begin(const BackwardProblem& problem, const BackwardTask& task, KeyInterval piece, void* memory) {
    lay_out_backward<Shape>(problem, static_cast<char*>(memory));
    BackwardWorkspace<T>& work = *static_cast<BackwardWorkspace<T>*>(memory);
    const AttentionProblem& forward = problem.forward;
    work.piece = piece;
    const std::int64_t count = piece.end - piece.begin;
    const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
    const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
    provide(keys_of(forward, task.forward), piece, forward.head_dim, head_dim, work.copied_keys, work.keys,
            work.key_stride);
    provide(values_of(forward, task.forward), piece, forward.value_dim, value_dim, work.copied_values, work.values,
            work.value_stride);
    const std::int64_t rows = round_up(count, kRows);
    __builtin_memset(work.grad_keys, 0, static_cast<std::size_t>(rows * head_dim) * sizeof(T));
    __builtin_memset(work.grad_values, 0, static_cast<std::size_t>(rows * value_dim) * sizeof(T));
  }

  static void advance(const BackwardProblem& problem, const BackwardTask& task, std::int64_t row_begin,
                      std::int64_t row_end, void* memory) {
    BackwardWorkspace<T>& work = *static_cast<BackwardWorkspace<T>*>(memory);
    over_strips(problem, task, row_begin, row_end, work, [&](bool sees_some) {
      if (sees_some) {
        pack_strip<Shape>(problem, task, work);
        over_blocks(work, [&](std::int64_t key, int count) {
          prefetch_next_strip(problem, task, key, work);
          add_block(problem, task, key, count, work);
        });
      }
      if (!task.partial)
        write_queries(problem, task, work, work.is_fresh ? nullptr : work.grad_queries);
      else if (sees_some)
        add_to_partial(problem, task, work);
    });
  }

  static void finish(const BackwardProblem& problem, const BackwardTask& task, void* memory) {
    const BackwardWorkspace<T>& work = *static_cast<const BackwardWorkspace<T>*>(memory);
    const AttentionProblem& forward = problem.forward;
    write_rows(problem.grad_key, task.grad_key, work.piece, work.grad_keys, forward.head_dim,
               padded_dim<Shape>(forward.head_dim), static_cast<T>(forward.scale));
    write_rows(problem.grad_value, task.grad_value, work.piece, work.grad_values, forward.value_dim,
               padded_dim<Shape>(forward.value_dim), T(1));
  }

  static void clear_keys(const BackwardProblem& problem, const BackwardTask& task, KeyInterval keys) {
    write_rows(problem.grad_key, task.grad_key, keys, nullptr, problem.forward.head_dim, 0, T(0));
    write_rows(problem.grad_value, task.grad_value, keys, nullptr, problem.forward.value_dim, 0, T(0));
  }

  static void sum_partials(const BackwardProblem& problem, const BackwardTask& task, std::int64_t bytes,
                           void* memory) {
    lay_out_backward<Shape>(problem, static_cast<char*>(memory));
    BackwardWorkspace<T>& work = *static_cast<BackwardWorkspace<T>*>(memory);
    const std::int64_t kv_len = task.forward.kv_len, keys = chunk_keys(kv_len);
    for_backward_strips<Shape>(task.forward.row_begin, task.forward.row_end, work.strip, [&] {
      locate_strip<Shape>(problem, task, work);
      const std::int64_t size = partial_rows<Shape>(problem) * work.strip.vectors * kLanes<T>;
      const T* partials[kMostChunks];
      int count = 0;
      for (std::int64_t chunk = 0; chunk * keys < kv_len; ++chunk)
        if (overlaps(work.strip.seen, chunk * keys, up_to({0, kv_len}, (chunk + 1) * keys).end))
          partials[count++] = partial_of(problem, task, work, chunk * bytes);
      for (std::int64_t i = 0; i < size; i += kLanes<T>) {
        Vec<T> sum{};
        for (int chunk = 0; chunk < count; ++chunk) sum = sum + load(partials[chunk] + i);
        store(work.grad_queries + i, sum);
      }
      write_queries(problem, task, work, work.grad_queries);
    });
  }

  static void write_deltas(const BackwardProblem& problem, const BackwardTask& task, void* memory) {
    lay_out_backward<Shape>(problem, static_cast<char*>(memory));
    BackwardWorkspace<T>& work = *static_cast<BackwardWorkspace<T>*>(memory);
    for_backward_strips<Shape>(task.forward.row_begin, task.forward.row_end, work.strip, [&] {
      find_deltas<Shape>(problem, task, work, true);
      T* to[Shape::kStripLanes];
      row_pointers(problem.forward, problem.deltas, task.deltas, work.strip, 0, to);
      for (int lane = 0; lane < work.strip.rows; ++lane) *to[lane] = work.delta[lane];
    });
  }

  static void add_to_bias(const BackwardProblem& problem, const BackwardTask& task, std::int64_t row_begin,
                          std::int64_t row_end, void* memory) {
    BackwardWorkspace<T>& work = *static_cast<BackwardWorkspace<T>*>(memory);
    over_strips(problem, task, row_begin, row_end, work, [&](bool sees_some) {
      if (!sees_some) return;
      pack_strip<Shape>(problem, task, work);
      over_blocks(work, [&](std::int64_t key, int count) {
        const KeyRuns<Shape> runs = Block::compute(problem, task, work, key, count, true);
        if (problem.grad_bias.element == Element::float64)
          add_rows_of_bias<double>(problem, task, runs, key, work);
        else
          add_rows_of_bias<float>(problem, task, runs, key, work);
      });
    });
  }

 private:
  // Calls body(whether it sees a key of the piece) for each strip. One that does has been located.
  template <class Body>
  REGARD_INLINE void over_strips(const BackwardProblem& problem, const BackwardTask& task, std::int64_t row_begin,
                                 std::int64_t row_end, BackwardWorkspace<T>& work, Body body) {
    StripRows<T>& strip = work.strip;
    for_backward_strips<Shape>(row_begin, row_end, strip, [&] {
      work.is_fresh = true;
      // Of many queries with a short window most strips see nothing of a piece: that is found without looking at each
      // row.
      const SeenKeys most{
          {}, keys_seen_by_rows(problem.forward, task.forward, strip.first_row, strip.first_row + strip.rows)};
      bool sees_some = overlaps(most, work.piece.begin, work.piece.end);
      if (sees_some) {
        locate_strip<Shape>(problem, task, work);
        sees_some = overlaps(strip.seen, work.piece.begin, work.piece.end);
      }
      body(sees_some);
    });
  }

  // Calls body(key, count) for the blocks of the piece of which the strip sees something.
  template <class Body>
  REGARD_INLINE void over_blocks(const BackwardWorkspace<T>& work, Body body) {
    for (std::int64_t key = work.piece.begin; key < work.piece.end; key += Shape::kBlockKeys) {
      const std::int64_t left = work.piece.end - key;
      const int count = static_cast<int>(left < Shape::kBlockKeys ? left : Shape::kBlockKeys);
      if (overlaps(work.strip.seen, key, key + count)) body(key, count);
    }
  }

  // What the next strip reads, a part with each block: the arrays may be larger than any cache.
  REGARD_INLINE void prefetch_next_strip(const BackwardProblem& problem, const BackwardTask& task, std::int64_t key,
                                         const BackwardWorkspace<T>& work) {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t next = work.strip.first_row + work.strip.rows, left = task.forward.row_end - next;
    const std::int64_t rows = left < Shape::kStripLanes ? left : Shape::kStripLanes;
    const int part = static_cast<int>((key - work.piece.begin) / Shape::kBlockKeys);
    const int parts = static_cast<int>((work.piece.end - work.piece.begin + Shape::kBlockKeys - 1) / Shape::kBlockKeys);
    prefetch_rows<0>(forward, forward.query, task.forward.query, next, rows, forward.head_dim, part, parts);
    prefetch_rows<0>(forward, problem.grad_output, task.grad_output, next, rows, forward.value_dim, part, parts);
    prefetch_rows<0>(forward, forward.output, task.forward.output, next, rows, forward.value_dim, part, parts);
  }

  // Rows of a piece, where they lie if whole tiles of them can be read there.
  REGARD_INLINE void provide(const KvRows& rows, KeyInterval piece, std::int64_t columns, std::int64_t padded_columns,
                             T* copy, const T*& from, std::ptrdiff_t& stride) {
    const std::int64_t count = piece.end - piece.begin;
    if (reads_in_place<T>(rows.operand) && columns % kRows == 0 && count % kRows == 0) {
      from = static_cast<const T*>(row_at(rows, piece.begin));
      stride = rows.operand.row_stride;
      return;
    }
    copy_rows(rows, piece.begin, count, columns, copy, round_up(count, kRows), padded_columns);
    from = copy;
    stride = padded_columns;
  }

  REGARD_NOINLINE void add_block(const BackwardProblem& problem, const BackwardTask& task, std::int64_t key, int count,
                                 BackwardWorkspace<T>& work) {
    const AttentionProblem& forward = problem.forward;
    const int width = work.strip.vectors * kLanes<T>;
    const bool wants_queries = task.grad_query || task.slope_terms, wants_scores = wants_queries || task.grad_key;
    const KeyRuns<Shape> runs = Block::compute(problem, task, work, key, count, wants_scores);
    if (runs.count == 0) return;
    const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
    const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
    const std::int64_t first = key - work.piece.begin;
    if (task.grad_value) {
      T* const sums = work.grad_values + first * value_dim;
      const bool selects =
          runs.hide_something && !are_finite(work.grad_output_rows, work.strip.rows, forward.value_dim);
      Products::add_rows(selects, runs, work.weights, work.grad_output_rows, work.strip, value_dim, sums);
    }
    if (!wants_scores) return;
    if (work.is_fresh && wants_queries) {
      T* const slope_terms = work.grad_queries + head_dim * width;
      for (int lane = 0; lane < width; ++lane) slope_terms[lane] = T(0);
    }
    if (task.slope_terms) Block::add_slope_terms(runs, work, key, work.grad_queries + head_dim * width);
    if (work.softcap != T(0)) Block::apply_cap(runs, work);
    if (task.grad_key) {
      T* const sums = work.grad_keys + first * head_dim;
      const bool selects = runs.hide_something && !are_finite(work.query_rows, work.strip.rows, forward.head_dim);
      Products::add_rows(selects, runs, work.grad_scores, work.query_rows, work.strip, head_dim, sums);
    }
    if (!wants_queries) return;
    const T* const keys = work.keys + first * work.key_stride;
    const std::int64_t columns = round_up(forward.head_dim, kRows);
    const bool selects = runs.hide_something && !rows_are_finite(keys, work.key_stride, count, forward.head_dim);
    const KeyTerm<T> term{work.grad_scores, {keys, work.key_stride}};
    add_columns<Shape>(work.strip.vectors, selects, runs, &term, 1, columns, work.is_fresh, work.grad_queries);
    work.is_fresh = false;
  }

  REGARD_INLINE T* partial_of(const BackwardProblem& problem, const BackwardTask& task,
                              const BackwardWorkspace<T>& work, std::int64_t bytes) {
    return reinterpret_cast<T*>(static_cast<char*>(task.partial) + bytes) +
           work.strip.first_row * partial_rows<Shape>(problem);
  }

  REGARD_NOINLINE void add_to_partial(const BackwardProblem& problem, const BackwardTask& task,
                                      const BackwardWorkspace<T>& work) {
    T* const partial = partial_of(problem, task, work, 0);
    const std::int64_t size = partial_rows<Shape>(problem) * work.strip.vectors * kLanes<T>;
    const bool is_first = task.chunk.begin == work.piece.begin ||
                          !overlaps(work.strip.seen, task.chunk.begin, work.piece.begin);
    for (std::int64_t i = 0; i < size; i += kLanes<T>) {
      const Vec<T> gradient = work.is_fresh ? Vec<T>{} : load(work.grad_queries + i);
      store(partial + i, is_first ? gradient : load(partial + i) + gradient);
    }
  }

  // `from` is the strip's gradients, or null where they are zeros.
  REGARD_NOINLINE void write_queries(const BackwardProblem& problem, const BackwardTask& task,
                                     const BackwardWorkspace<T>& work, T* from) {
    const AttentionProblem& forward = problem.forward;
    const int width = work.strip.vectors * kLanes<T>;
    const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
    if (!from) {
      from = work.grad_queries;
      for (std::int64_t i = 0; i < (head_dim + 1) * width; i += kLanes<T>) store(from + i, Vec<T>{});
    }
    if (task.grad_query) {
      const Vec<T> scale = broadcast(static_cast<T>(forward.scale));
      with_result_element<T>(problem.grad_query.element, [&](auto element) {
        using To = typename decltype(element)::Type;
        To* rows[Shape::kStripLanes];
        row_pointers(forward, problem.grad_query, task.grad_query, work.strip, 0, rows);
        lanes_to_rows(from, width, forward.head_dim, rows, work.strip.rows, problem.grad_query.column_stride,
                      [=](Vec<T> value, int) { return value * scale; });
      });
    }
    if (task.slope_terms) {
      T* rows[Shape::kStripLanes];
      row_pointers(forward, problem.slope_terms, task.slope_terms, work.strip, 0, rows);
      for (int lane = 0; lane < work.strip.rows; ++lane) *rows[lane] = from[head_dim * width + lane];
    }
  }

  // Rows of keys or values; null is zeros.
  REGARD_NOINLINE void write_rows(const Operand& operand, void* data, KeyInterval keys, const T* from,
                                  std::int64_t columns, std::int64_t stride, T factor) {
    if (!data) return;
    with_result_element<T>(operand.element, [&](auto element) {
      using To = typename decltype(element)::Type;
      for (std::int64_t key = keys.begin; key < keys.end; ++key) {
        To* to = static_cast<To*>(data) + key * operand.row_stride;
        const T* row = from ? from + (key - keys.begin) * stride : nullptr;
        std::int64_t d = 0;
        if (operand.column_stride == 1)
          for (; d + kLanes<T> <= columns; d += kLanes<T>)
            store_as<T>(to + d, row ? load(row + d) * broadcast(factor) : Vec<T>{});
        for (; d < columns; ++d) narrow(row ? row[d] * factor : T(0), to[d * operand.column_stride]);
      }
    });
  }

  // Rows of heads and queries for which a bias is broadcast are the same: each lane's is added after that of the lane
  // before.
  template <class To>
  REGARD_NOINLINE void add_rows_of_bias(const BackwardProblem& problem, const BackwardTask& task, const KeyRuns<Shape>& runs,
                                        std::int64_t key, const BackwardWorkspace<T>& work) {
    const Operand& operand = problem.grad_bias;
    const std::int64_t lanes = work.strip.vectors * kLanes<T>;
    To* rows[Shape::kStripLanes];
    row_pointers(problem.forward, operand, task.grad_bias, work.strip, key, rows);
    for (int lane = 0; lane < work.strip.rows; ++lane)
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
          rows[lane][k * operand.column_stride] += static_cast<To>(work.grad_scores[k * lanes + lane]);
  }
};

}  // namespace
}  // namespace regard
