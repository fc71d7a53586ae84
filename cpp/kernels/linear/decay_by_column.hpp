// Decays of each column c of the keys, in parts of kPart tokens. With the sums R at the start of a
// part, the weight of key j for a row i of the part is
//
//   sum over c of (row_ic exp(G_ic - R_c)) (key_jc exp(R_c - G_jc))
//
// Both exponents are at most 0 for keys before the part, unless decays are positive. For keys of
// the part, the second is at least 0. From the first token on at which a sum of the part is large,
// each of these weights is computed from the difference G_i - G_j.
#pragma once

#include "decay.hpp"

namespace regard {
namespace {

template <class Shape>
struct DecayByColumn {
  using T = typename Shape::Element;
  using Workspace = LinearWorkspace<Shape>;
  static constexpr std::int64_t kScores = Workspace::kScores;
  // Half of the exponents of T.
  static constexpr T kLarge = sizeof(T) == 4 ? T(44) : T(354);

  // Sets the sums, the decays from the start of the parts, the keys of all parts, and the keys
  // decayed to the end. `work.keys` are the keys.
  REGARD_NOINLINE void prepare(const LinearProblem& problem, const LinearTask& task,
                               std::int64_t first, std::int64_t count, const Workspace& work) {
    copy_tokens<T>(problem.decay, task.decay, first, count, problem.head_dim, work.sums, count,
                   work.stride);
    for (std::int64_t column = 0; column < work.stride; column += kLanes<T>) {
      DecaySum<T> total{};
      for (std::int64_t i = 0; i < count; ++i) {
        T* const sum = work.sums + i * work.stride + column;
        const DecaySum<T> start = i % kPart == 0 ? total : at(work, start_of(i), column);
        total.add(finite_decay<T>(load(sum)));
        store(sum, total.sum);
        store(work.rests + i * work.stride + column, total.rest);
        store(work.near + i * work.stride + column, factor_of<T>(total.since(start)));
        store(work.row_decays + i * work.stride + column, factor_of<T>(total));
      }
    }
    const Rows<T> all{work.ends, work.stride};
    for (std::int64_t begin = 0; begin < count; begin += kPart) {
      const std::int64_t end = begin + kPart < count ? begin + kPart : count;
      move_keys(work, begin, begin);
      for (std::int64_t j = begin; j < end; ++j)
        for (std::int64_t column = 0; column < work.stride; column += kLanes<T>) {
          const std::int64_t place = j * work.stride + column;
          store(work.ends + place, load(work.keys + place) / load(work.near + place));
        }
      transpose_rows<T>(end, all, problem.head_dim, of_part(problem, work, begin));
    }
    move_keys(work, (count - 1) / kPart * kPart + kPart, count);
    for (std::int64_t column = 0; column < problem.head_dim; column += kLanes<T>)
      store(work.state_decay + column, load(work.row_decays + (count - 1) * work.stride + column));
  }

  // scores[i][j] of `rows`, whose row i is at token i, for all j up to i.
  REGARD_NOINLINE void score(const LinearProblem& problem, std::int64_t count,
                             const Workspace& work, const Rows<T>& rows, const Rows<T>& scores) {
    for (std::int64_t begin = 0; begin < count; begin += kPart) {
      const std::int64_t end = begin + kPart < count ? begin + kPart : count;
      const Rows<const T> keys = as_const(of_part(problem, work, begin));
      for (std::int64_t at = 0; at < (end - begin) * work.stride; at += kLanes<T>)
        store(work.scaled + at,
              load(rows.at(begin) + at) * load(work.near + begin * work.stride + at));
      for_panels<Shape>(end, [&](std::int64_t lane, int vectors) {
        with_vectors<Shape>(vectors, [&](auto width) {
          multiply_panel<Shape, width.value>(end - begin, {work.scaled, work.stride},
                                             {keys.data + lane, keys.stride}, problem.head_dim,
                                             {scores.at(begin) + lane, scores.stride});
        });
      });
      for (std::int64_t i = first_large(work, begin, end); i < end; ++i)
        for (std::int64_t j = begin; j <= i; ++j)
          scores.at(i)[j] = score_of_pair(work, rows.at(i), i, j);
    }
  }

  // Multiplies rows by the decays from the start of the chunk.
  REGARD_NOINLINE void decay_rows(std::int64_t count, const Workspace& work, const Rows<T>& rows) {
    for (std::int64_t at = 0; at < count * work.stride; at += kLanes<T>)
      store(rows.data + at, load(rows.data + at) * load(work.row_decays + at));
  }

  // The sums at a token, or 0 before the first.
  REGARD_INLINE DecaySum<T> at(const Workspace& work, std::int64_t token, std::int64_t column) {
    if (token < 0) return {Vec<T>{}, Vec<T>{}};
    const std::int64_t place = token * work.stride + column;
    return {load(work.sums + place), load(work.rests + place)};
  }

  REGARD_INLINE Rows<T> of_part(const LinearProblem& problem, const Workspace& work,
                                std::int64_t begin) {
    return {work.transposed + begin / kPart * problem.head_dim * kScores, kScores};
  }
  // The first token of a part from whose start a sum is large, or `end`.
  REGARD_INLINE std::int64_t first_large(const Workspace& work, std::int64_t begin,
                                         std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t column = 0; column < work.stride; column += kLanes<T>) {
        const Vec<T> sum = at(work, i, column).since(at(work, begin - 1, column)).sum;
        if (any<T>((sum > broadcast(kLarge)) | (sum < broadcast(-kLarge)))) return i;
      }
    return end;
  }

 private:
  REGARD_INLINE std::int64_t start_of(std::int64_t token) { return token / kPart * kPart - 1; }

  REGARD_INLINE Rows<const T> as_const(const Rows<T>& rows) { return {rows.data, rows.stride}; }

  // Decays the keys of the parts before `begin` up to token `to` - 1: those of earlier parts from
  // where they were moved before, those of the last part from the keys themselves.
  REGARD_NOINLINE void move_keys(const Workspace& work, std::int64_t begin, std::int64_t to) {
    const std::int64_t last = begin - kPart;
    for (std::int64_t column = 0; last >= 0 && column < work.stride; column += kLanes<T>) {
      const DecaySum<T> now = at(work, to - 1, column);
      const Vec<T> step = factor_of<T>(now.since(at(work, last - 1, column)));
      for (std::int64_t j = 0; j < last; ++j) {
        T* const place = work.ends + j * work.stride + column;
        store(place, load(place) * step);
      }
      for (std::int64_t j = last; j < begin && j < to; ++j) {
        const std::int64_t place = j * work.stride + column;
        store(work.ends + place,
              load(work.keys + place) * factor_of<T>(now.since(at(work, j, column))));
      }
    }
  }

  REGARD_INLINE T score_of_pair(const Workspace& work, const T* row, std::int64_t i,
                                std::int64_t j) {
    Vec<T> sum{};
    for (std::int64_t column = 0; column < work.stride; column += kLanes<T>) {
      const Vec<T> decay = factor_of<T>(at(work, i, column).since(at(work, j, column)));
      sum = fma(load(row + column) * decay, load(work.keys + j * work.stride + column), sum);
    }
    T total = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) total += sum[lane];
    return total;
  }
};

}  // namespace
}  // namespace regard
