// The gradients that scores with decays by column have, in the parts of decay_by_column.hpp. With X
// for the gradients of scores, and the sums R at the start of a part, the rows of the part add
//
//   exp(G_ic - R_c) sum over j of X_ij (key_jc exp(R_c - G_jc))    to the gradient of row i
//   exp(R_c - G_jc) sum over i of X_ij (row_ic exp(G_ic - R_c))    to the gradient of key j
//
// and the second sums of all rows are kept for each part, and decayed once, at the end.
#pragma once

#include "decay_by_column.hpp"
#include "gradient_products.hpp"

namespace regard {
namespace {

template <class Shape>
struct GradientsByColumn {
  using T = typename Shape::Element;
  using Workspace = LinearWorkspace<Shape>;
  using ByColumn = DecayByColumn<Shape>;
  static constexpr std::int64_t kScores = Workspace::kScores;

  // Adds what the gradients of scores, which are changed, add to those of `rows` and keys.
  REGARD_NOINLINE void add(const LinearProblem& problem, std::int64_t count, const Workspace& work,
                           const Rows<T>& keys, const Rows<T>& rows, const Rows<T>& scores,
                           const Rows<T>& grad_rows, const Rows<T>& grad_keys, T* sums_of_parts,
                           const Rows<T>& turned, const Rows<T>& products) {
    for (std::int64_t begin = 0; begin < count; begin += kPart) {
      const std::int64_t end = begin + kPart < count ? begin + kPart : count;
      const Rows<T> keys_of_part = ByColumn::of_part(problem, work, begin);
      const std::int64_t large = ByColumn::first_large(work, begin, end);
      for (std::int64_t i = large; i < end; ++i)
        for (std::int64_t j = begin; j < i; ++j) {
          add_pair(work, scores.at(i)[j], {rows.at(i), keys.at(j)}, {i, j}, grad_rows.at(i),
                   grad_keys.at(j));
          scores.at(i)[j] = T(0);
        }
      // No row of the part has these keys any more, and they may be infinite.
      for (std::int64_t d = 0; large < end && d < problem.head_dim; ++d)
        for (std::int64_t j = large; j < end; ++j) keys_of_part.at(d)[j] = T(0);

      transpose_rows<T>(end - begin, {scores.at(begin), scores.stride}, end, turned);
      product<Shape, false>(problem.head_dim, keys_of_part, turned, end, end - begin, products,
                            Into::replaced);
      const Rows<T> scaled{work.scaled, work.stride};
      transpose_matrix<T>(problem.head_dim, products, end - begin, scaled);
      for (std::int64_t at = 0; at < (end - begin) * work.stride; at += kLanes<T>) {
        const std::int64_t place = begin * work.stride + at;
        const Vec<T> near = load(work.near + place);
        store(grad_rows.data + place,
              fma(load(scaled.data + at), near, load(grad_rows.data + place)));
        store(scaled.data + at, load(rows.data + place) * near);
      }
      product<Shape, true>(end, {scores.at(begin), scores.stride}, scaled, end - begin,
                           problem.head_dim, of_part(work, sums_of_parts, begin), Into::added);
    }
  }

  // Adds the sums of all parts to the gradients of keys.
  REGARD_NOINLINE void finish_keys(std::int64_t count, const Workspace& work, T* sums_of_parts,
                                   const Rows<T>& grad_keys) {
    for (std::int64_t begin = 0; begin < count; begin += kPart) {
      const Rows<T> sums = of_part(work, sums_of_parts, begin);
      for (std::int64_t j = 0; j < count && j < begin + kPart; ++j)
        for (std::int64_t at = 0; at < work.stride; at += kLanes<T>) {
          T* const to = grad_keys.at(j) + at;
          const Vec<T> sum = load(sums.at(j) + at);
          if (j < begin) {
            const DecaySum<T> start = ByColumn::at(work, begin - 1, at);
            const Vec<T> decay = factor_of<T>(start.since(ByColumn::at(work, j, at)));
            store(to, fma(sum, decay, load(to)));
          } else {  // a key without a sum may have no factor either
            const Vec<T> near = load(work.near + j * work.stride + at);
            store(to, load(to) + select<T>(sum == Vec<T>{}, sum, sum / near));
          }
        }
    }
  }

  // The decays from token j to the end of the chunk.
  REGARD_INLINE Vec<T> to_end(const Workspace& work, std::int64_t count, std::int64_t j,
                              std::int64_t at) {
    return factor_of<T>(ByColumn::at(work, count - 1, at).since(ByColumn::at(work, j, at)));
  }

 private:
  struct Vectors {
    const T* row;
    const T* key;
  };
  struct Tokens {
    std::int64_t row;
    std::int64_t key;
  };

  REGARD_INLINE Rows<T> of_part(const Workspace& work, T* sums_of_parts, std::int64_t begin) {
    return {sums_of_parts + begin / kPart * kChunk * work.stride, work.stride};
  }

  REGARD_INLINE void add_pair(const Workspace& work, T score, const Vectors& vectors,
                              const Tokens& tokens, T* grad_row, T* grad_key) {
    for (std::int64_t at = 0; at < work.stride; at += kLanes<T>) {
      const DecaySum<T> row = ByColumn::at(work, tokens.row, at);
      const Vec<T> decay = factor_of<T>(row.since(ByColumn::at(work, tokens.key, at)));
      const Vec<T> factor = broadcast(score) * decay;
      store(grad_row + at, fma(factor, load(vectors.key + at), load(grad_row + at)));
      store(grad_key + at, fma(factor, load(vectors.row + at), load(grad_key + at)));
    }
  }
};

}  // namespace
}  // namespace regard
