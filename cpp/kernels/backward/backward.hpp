// The gradients of a chunk of keys of one kv head, from grad_output and the forward's lse:
//
//   dV = P^T dO    dK = scale dS^T Q    dQ = scale dS K
//
//   for a piece of the chunk's keys        K, V, dK and dV stay in L2
//     for a band of queries                Q and dO in lanes and as rows, dQ in lanes (band.hpp)
//       for a block of the piece's keys
//         for a strip of the band
//           P and dS                       a tile of keys x queries in registers
//           dQ^T += K^T dS^T               a tile of dimensions x queries in registers
//         dV += P^T dO, dK += dS^T Q       a tile of keys x dimensions in registers
//
// The gradients of a key are summed over bands in order. The gradients of a query are summed over
// the blocks of a chunk, then over chunks. Nothing else is added to them, so the bits depend only
// on the lengths.
#pragma once

#include "band.hpp"
#include "gradients_of_scores.hpp"
#include "plain_factors.hpp"
#include "../kernel_table.hpp"
#include "products.hpp"

namespace regard {
namespace {

// `Factors` provides the operands of the products: plain_factors.hpp, ../bfloat16/factors.hpp.
template <class Shape, class Factors = PlainFactors<Shape>>
struct Backward {
  using T = typename Shape::Element;
  using Workspace = BackwardWorkspace<Shape>;
  using Strip = BackwardStrip<T>;
  using Scores = GradientsOfScores<Shape, Factors>;
  using Products = BackwardProducts<Shape, Factors>;
  static constexpr int kRows = Shape::kRows;

  static constexpr BackwardKernels kernels() {
    return {
        .workspace_bytes = workspace_bytes,
        .band_rows = kBandLanes<Shape>,
        .block_keys = Shape::kBlockKeys,
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
    return lay_out_backward<Shape, Factors>(problem, nullptr);
  }

  static std::int64_t chunk_keys(std::int64_t kv_len) {
    std::int64_t chunks = 1;
    while (chunks < kMostChunks && kv_len > 2 * chunks * kLeastChunkKeys) chunks *= 2;
    const std::int64_t keys = round_up((kv_len + chunks - 1) / chunks, kChunkUnit);
    return keys > kChunkUnit ? keys : kChunkUnit;
  }

  static std::int64_t partial_bytes(const BackwardProblem& problem, std::int64_t rows) {
    return round_up(rows, Shape::kStripLanes) * partial_rows<Shape>(problem) *
           static_cast<std::int64_t>(sizeof(T));
  }

  static void begin(const BackwardProblem& problem, const BackwardTask& task, KeyInterval piece,
                    void* memory) {
    lay_out_backward<Shape, Factors>(problem, memory);
    Workspace& work = *static_cast<Workspace*>(memory);
    const AttentionProblem& forward = problem.forward;
    work.piece = piece;
    const std::int64_t count = piece.end - piece.begin;
    const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
    const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
    Factors::provide_keys(problem, task, work);
    const std::int64_t rows = round_up(count, kRows);
    __builtin_memset(work.grad_keys, 0, static_cast<std::size_t>(rows * head_dim) * sizeof(T));
    __builtin_memset(work.grad_values, 0, static_cast<std::size_t>(rows * value_dim) * sizeof(T));
  }

  static void advance(const BackwardProblem& problem, const BackwardTask& task,
                      std::int64_t row_begin, std::int64_t row_end, void* memory) {
    Workspace& work = *static_cast<Workspace*>(memory);
    over_bands(problem, task, row_begin, row_end, work, [&](bool sees_some) {
      for (int s = 0; s < work.strip_count; ++s) start_queries(problem, task, work, work.strips[s]);
      if (sees_some) {
        pack_band<Shape, Factors>(problem, task, work);
        over_blocks(problem, work, [&](const KeySpan& block) {
          prefetch_next_band(problem, task, block.begin, work);
          add_block(problem, task, block, work);
        });
      }
      for (int s = 0; s < work.strip_count; ++s) finish_queries(problem, task, work.strips[s]);
    });
  }

  static void finish(const BackwardProblem& problem, const BackwardTask& task, void* memory) {
    const Workspace& work = *static_cast<const Workspace*>(memory);
    const AttentionProblem& forward = problem.forward;
    write_rows(problem.grad_key, task.grad_key, work.piece, work.grad_keys, forward.head_dim,
               padded_dim<Shape>(forward.head_dim), common_scale(forward));
    write_rows(problem.grad_value, task.grad_value, work.piece, work.grad_values, forward.value_dim,
               padded_dim<Shape>(forward.value_dim), T(1));
  }

  static void clear_keys(const BackwardProblem& problem, const BackwardTask& task,
                         KeyInterval keys) {
    write_rows(problem.grad_key, task.grad_key, keys, nullptr, problem.forward.head_dim, 0, T(0));
    write_rows(problem.grad_value, task.grad_value, keys, nullptr, problem.forward.value_dim, 0,
               T(0));
  }

  static void sum_partials(const BackwardProblem& problem, const BackwardTask& task,
                           std::int64_t bytes, void* memory) {
    lay_out_backward<Shape, Factors>(problem, memory);
    Workspace& work = *static_cast<Workspace*>(memory);
    const std::int64_t kv_len = task.forward.kv_len, keys = chunk_keys(kv_len);
    for_bands<Shape>(task.forward.row_begin, task.forward.row_end, work, [&] {
      for (int number = 0; number < work.strip_count; ++number) {
        Strip& strip = work.strips[number];
        locate_strip(problem.forward, task.forward, strip);
        const std::int64_t size = partial_rows<Shape>(problem) * Shape::kStripLanes;
        const T* partials[kMostChunks];
        int count = 0;
        for (std::int64_t chunk = 0; chunk * keys < kv_len; ++chunk)
          if (sees_keys(problem.forward, strip, chunk * keys,
                        up_to({0, kv_len}, (chunk + 1) * keys).end))
            partials[count++] = partial_of(problem, task, strip, chunk * bytes);
        for (std::int64_t i = 0; i < size; i += kLanes<T>) {
          Vec<T> sum{};
          for (int chunk = 0; chunk < count; ++chunk) sum = sum + load(partials[chunk] + i);
          store(strip.own_grad_queries + i, sum);
        }
        write_queries(problem, task, strip, strip.own_grad_queries);
      }
    });
  }

  static void write_deltas(const BackwardProblem& problem, const BackwardTask& task, void* memory) {
    lay_out_backward<Shape, Factors>(problem, memory);
    Workspace& work = *static_cast<Workspace*>(memory);
    for_bands<Shape>(task.forward.row_begin, task.forward.row_end, work, [&] {
      find_deltas<Shape, Factors>(problem, task, work);
      for (int s = 0; s < work.strip_count; ++s)
        write_numbers_of_rows<Shape>(problem.forward, problem.deltas, task.deltas, work.strips[s],
                                     [&](int lane) { return work.strips[s].delta[lane]; });
    });
  }

  static void add_to_bias(const BackwardProblem& problem, const BackwardTask& task,
                          std::int64_t row_begin, std::int64_t row_end, void* memory) {
    Workspace& work = *static_cast<Workspace*>(memory);
    over_bands(problem, task, row_begin, row_end, work, [&](bool sees_some) {
      if (!sees_some) return;
      pack_band<Shape, Factors>(problem, task, work);
      over_blocks(problem, work, [&](const KeySpan& block) {
        KeyRuns<Shape> runs[Shape::kBandStrips];
        for (int s = 0; s < work.strip_count; ++s)
          compute(problem, task, work, s, block, true, runs[s]);
        for (int s = 0; s < work.strip_count; ++s)
          if (problem.grad_bias.element == Element::float64)
            add_rows_of_bias<double>(problem, task, runs[s], block.begin, s, work);
          else
            add_rows_of_bias<float>(problem, task, runs[s], block.begin, s, work);
      });
    });
  }

 private:
  // The scale of all heads. If heads have different scales, the gradient of each score has already
  // been multiplied by its head's scale.
  static T common_scale(const AttentionProblem& forward) {
    return forward.scales.data ? T(1) : static_cast<T>(forward.scale);
  }

  // Calls body(sees_some) for each band, where sees_some tells whether the band sees a key of the
  // piece. Strips that see a key have been located.
  template <class Body>
  REGARD_INLINE void over_bands(const BackwardProblem& problem, const BackwardTask& task,
                                std::int64_t row_begin, std::int64_t row_end, Workspace& work,
                                Body body) {
    for_bands<Shape>(row_begin, row_end, work, [&] {
      bool sees_some = false;
      for (int s = 0; s < work.strip_count; ++s) {
        Strip& strip = work.strips[s];
        // With many queries and a short window, no key of a piece is visible to most strips. This
        // test detects them without visiting each row.
        const SeenKeys most{{},
                            keys_seen_by_rows(problem.forward, task.forward, strip.first_row,
                                              strip.first_row + strip.rows)};
        const KeyInterval& piece = work.piece;
        strip.sees_some = overlaps(most, piece.begin, piece.end) &&
                          (!problem.forward.sparse_mask ||
                           may_see_by_mask(problem.forward, task.forward, strip.first_row,
                                           strip.first_row + strip.rows, piece.begin, piece.end));
        if (strip.sees_some) {
          locate_strip(problem.forward, task.forward, strip);
          strip.sees_some = sees_keys(problem.forward, strip, piece.begin, piece.end);
        }
        sees_some |= strip.sees_some;
      }
      body(sees_some);
    });
  }

  // Calls body(block) for each block of the piece in which the band sees a key.
  template <class Body>
  REGARD_INLINE void over_blocks(const BackwardProblem& problem, const Workspace& work, Body body) {
    for (std::int64_t key = work.piece.begin; key < work.piece.end; key += Shape::kBlockKeys) {
      const KeySpan block = span_at<Shape>(key, work.piece.end);
      bool sees_some = false;
      for (int s = 0; s < work.strip_count; ++s)
        sees_some |= sees(problem.forward, work.strips[s], block);
      if (sees_some) body(block);
    }
  }

  REGARD_INLINE bool sees(const AttentionProblem& forward, const Strip& strip,
                          const KeySpan& block) {
    return strip.sees_some && sees_keys(forward, strip, block.begin, block.begin + block.count);
  }

  // Prefetches what the next band reads, one part with each block, because the arrays may be larger
  // than any cache.
  REGARD_INLINE void prefetch_next_band(const BackwardProblem& problem, const BackwardTask& task,
                                        std::int64_t key, const Workspace& work) {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t next = work.strips[0].first_row + work.rows,
                       left = task.forward.row_end - next;
    const std::int64_t rows = left < kBandLanes<Shape> ? left : kBandLanes<Shape>;
    const int part = static_cast<int>((key - work.piece.begin) / Shape::kBlockKeys);
    const int parts = static_cast<int>((work.piece.end - work.piece.begin + Shape::kBlockKeys - 1) /
                                       Shape::kBlockKeys);
    prefetch_rows<0>(forward, forward.query, task.forward.query, next, rows, forward.head_dim, part,
                     parts);
    prefetch_rows<0>(forward, problem.grad_output, task.grad_output, next, rows, forward.value_dim,
                     part, parts);
    prefetch_rows<0>(forward, forward.output, task.forward.output, next, rows, forward.value_dim,
                     part, parts);
  }

  REGARD_INLINE void compute(const BackwardProblem& problem, const BackwardTask& task,
                             const Workspace& work, int number, const KeySpan& block,
                             bool wants_scores, KeyRuns<Shape>& runs) {
    if (!sees(problem.forward, work.strips[number], block)) return;
    Scores::compute(problem, task, work, number, block, wants_scores, runs);
  }

  REGARD_NOINLINE void add_block(const BackwardProblem& problem, const BackwardTask& task,
                                 const KeySpan& block, Workspace& work) {
    const AttentionProblem& forward = problem.forward;
    const bool wants_scores =
        task.grad_query || task.slope_terms || task.distance_terms || task.grad_key;
    KeyRuns<Shape> runs[Shape::kBandStrips];
    for (int s = 0; s < work.strip_count; ++s) {
      compute(problem, task, work, s, block, wants_scores, runs[s]);
      if (wants_scores && runs[s].count > 0) add_to_queries(problem, task, block, s, runs[s], work);
    }
    const BandRuns<Shape> band = runs_of_band<Shape>(runs, work.strip_count);
    if (band.count == 0) return;
    const std::int64_t first = block.begin - work.piece.begin;
    if (task.grad_value) {
      const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
      const bool selects =
          band.hide_something &&
          !are_finite<Factors>(work.grad_output_rows, work.rows, forward.value_dim);
      Factors::finish_terms(work, band, work.weights);
      Products::add_rows(selects, band, work.weights, work.grad_output_rows, work.rows, value_dim,
                         work.grad_values + first * value_dim);
    }
    if (task.grad_key) {
      const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
      const bool selects =
          band.hide_something && !are_finite<Factors>(work.query_rows, work.rows, forward.head_dim);
      Factors::finish_terms(work, band, work.grad_scores);
      Products::add_rows(selects, band, work.grad_scores, work.query_rows, work.rows, head_dim,
                         work.grad_keys + first * head_dim);
    }
  }

  // Adds the contribution of a block to the gradients of a strip's queries, slopes and distances.
  // Leaves the gradients of products in work.grad_scores.
  REGARD_NOINLINE void add_to_queries(const BackwardProblem& problem, const BackwardTask& task,
                                      const KeySpan& block, int number, const KeyRuns<Shape>& runs,
                                      Workspace& work) {
    const AttentionProblem& forward = problem.forward;
    Strip& strip = work.strips[number];
    if (task.slope_terms) {
      T* const terms =
          strip.grad_queries + padded_dim<Shape>(forward.head_dim) * Shape::kStripLanes;
      Scores::add_slope_terms(work, number, runs, block.begin, terms);
    }
    if (task.distance_terms)
      Scores::add_distance_terms(forward, work, number, runs, block.begin, task.distance_terms);
    if (work.score_factors) Scores::apply_factors(work, number, runs);
    if (!task.grad_query) return;
    Factors::add_to_queries(forward, work, number, runs, block);
    strip.is_fresh = false;
  }

  REGARD_INLINE T* partial_of(const BackwardProblem& problem, const BackwardTask& task,
                              const Strip& strip, std::int64_t bytes) {
    return reinterpret_cast<T*>(static_cast<char*>(task.partial) + bytes) +
           strip.first_row * partial_rows<Shape>(problem);
  }

  // Finds where the gradients of a strip are accumulated, and whether an earlier piece of the chunk
  // has added to them.
  REGARD_INLINE void start_queries(const BackwardProblem& problem, const BackwardTask& task,
                                   const Workspace& work, Strip& strip) {
    strip.is_fresh = true;
    strip.grad_queries = strip.own_grad_queries;
    if (task.partial) {
      if (!strip.sees_some) return;
      strip.grad_queries = partial_of(problem, task, strip, 0);
      strip.is_fresh = task.chunk.begin == work.piece.begin ||
                       !sees_keys(problem.forward, strip, task.chunk.begin, work.piece.begin);
    }
    if (!strip.is_fresh) return;
    T* const terms =
        strip.grad_queries + padded_dim<Shape>(problem.forward.head_dim) * Shape::kStripLanes;
    for (int lane = 0; lane < Shape::kStripLanes; ++lane) terms[lane] = T(0);
  }

  REGARD_INLINE void finish_queries(const BackwardProblem& problem, const BackwardTask& task,
                                    const Strip& strip) {
    if (task.partial && !strip.sees_some) return;
    const std::int64_t size = padded_dim<Shape>(problem.forward.head_dim) * Shape::kStripLanes;
    for (std::int64_t i = 0; strip.is_fresh && i < size; i += kLanes<T>)
      store(strip.grad_queries + i, Vec<T>{});
    if (!task.partial) write_queries(problem, task, strip, strip.grad_queries);
  }

  REGARD_NOINLINE void write_queries(const BackwardProblem& problem, const BackwardTask& task,
                                     const Strip& strip, const T* from) {
    const AttentionProblem& forward = problem.forward;
    if (task.grad_query) {
      const Vec<T> scale = broadcast(common_scale(forward));
      unpack_rows<Shape>(forward, problem.grad_query, task.grad_query, strip, 0, forward.head_dim,
                         from, [=](Vec<T> value, int) { return value * scale + Vec<T>{}; });
    }
    const T* const terms = from + padded_dim<Shape>(forward.head_dim) * Shape::kStripLanes;
    write_numbers_of_rows<Shape>(forward, problem.slope_terms, task.slope_terms, strip,
                                 [&](int lane) { return terms[lane]; });
  }

  // Writes rows of keys or values; a null `from` means zeros.
  REGARD_NOINLINE void write_rows(const Operand& operand, void* data, KeyInterval keys,
                                  const T* from, std::int64_t columns, std::int64_t stride,
                                  T factor) {
    if (!data) return;
    with_result_element<T>(operand.element, [&](auto element) {
      using To = typename decltype(element)::Type;
      for (std::int64_t key = keys.begin; key < keys.end; ++key) {
        const T* const row = from + (key - keys.begin) * stride;
        write_row<T>(
            static_cast<To*>(data) + key * operand.row_stride, operand.column_stride, columns,
            [&](std::int64_t d) { return from ? load(row + d) * broadcast(factor) : Vec<T>{}; });
      }
    });
  }

  // Heads and queries over which a bias is broadcast share a row of grad_bias, so the lanes are
  // added one after another.
  template <class To>
  REGARD_NOINLINE void add_rows_of_bias(const BackwardProblem& problem, const BackwardTask& task,
                                        const KeyRuns<Shape>& runs, std::int64_t key, int number,
                                        const Workspace& work) {
    const Operand& operand = problem.grad_bias;
    const Strip& strip = work.strips[number];
    const T* const gradients = work.grad_scores + number * Scores::kBlock;
    To* rows[Shape::kStripLanes];
    row_pointers(problem.forward, operand, task.grad_bias, strip, key, rows);
    for (int lane = 0; lane < strip.rows; ++lane)
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
          rows[lane][k * operand.column_stride] +=
              static_cast<To>(gradients[k * Scores::kPitch + lane]);
  }
};

}  // namespace
}  // namespace regard
