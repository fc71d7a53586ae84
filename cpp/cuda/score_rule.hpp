// The computation of scores, and the keys that a row sees: the rule of
// cpp/kernels/strips/score_rule.hpp, for the rows of one thread.
//
//   product = query . key
//   score   = product_scale product, or softcap tanh(product_scale product) if there is a cap
//   added   = bias - slope |position - key|      a finite number, or -inf if the bias hides the key
//   score   = score + added
#pragma once

#include "panel_stream.hpp"

namespace regard::cuda {

constexpr float kMostAdded = kLargest / 2;  // so that the sum of a score and finite terms stays finite

REGARD_BOTH float nearest_finite(float value) {
  return value > kLargest ? kLargest : value < -kLargest ? -kLargest : value;
}

// Limits a finite term to kMostAdded. Infinities and NaN stay.
REGARD_DEVICE float within_limits(float value) {
  return fabsf(value) <= kLargest ? fminf(fmaxf(value, -kMostAdded), kMostAdded) : value;
}

REGARD_DEVICE float bias_at(const AttentionProblem& problem, std::int64_t index) {
  if (problem.bias_element == Element::float32) return static_cast<const float*>(problem.bias.data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(problem.bias.data)[index];
  return problem.bias_element == Element::float16 ? float_of(Float16(), bits) : float_of(BFloat16(), bits);
}

template <class Tile, bool kOptions>
class ScoreRule {
  static constexpr int kRows = Tile::kRowsOfThread, kScores = Tile::kScores;
  static constexpr int kWords = MaskTiles<Tile::kKeys>::kWords;
  static_assert(kRows * kScores <= 32, "one bit per score");

 public:
  REGARD_DEVICE ScoreRule(const Arguments& arguments, const Entry& entry, const RowTable& rows)
      : arguments_(arguments), entry_(entry), rows_(rows) {}

  // Converts products to scores, which are -inf for hidden keys. Returns a bit for each score, r
  // kScores + s, that indicates whether its key is visible. Unless kTested, all keys are visible.
  template <bool kTested>
  REGARD_DEVICE std::uint32_t form(float (&scores)[kRows][kScores], const KeyTile& tile) const {
    const AttentionProblem& problem = arguments_.problem;
    std::uint32_t all_seen = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const TileRow row = kTested || kOptions ? rows_.row(Tile::row(r)) : TileRow{};
      std::uint32_t bits[kWords] = {};
      if (kTested && kOptions && tile.mask_hides) load_bits(bits, tile, r);
      // All positions are relative to the key of the thread's first score. 32 bits suffice: visible
      // keys end before 2^31.
      const std::int32_t first_key = tile.first_key + Tile::first_key();
      const std::int32_t begin = row.seen.begin - first_key, end = row.seen.end - first_key;
      float distance = 0, slope = 0;
      std::int64_t bias = 0;
      if (kOptions && problem.alibi_slopes) {
        distance = static_cast<float>(row.query + entry_.query_offset - first_key);
        slope = problem.alibi_slopes[entry_.number * problem.alibi_batch_stride + row.head];
      }
      if (kTested && kOptions && problem.bias.data)
        bias = offset_of_row(problem, problem.bias, entry_, row.head, row.query) +
               first_key * problem.bias.column_stride;
#pragma unroll
      for (int s = 0; s < kScores; ++s) {
        const int step = Tile::key_step(s);
        float score = rounded_product(scores[r][s], arguments_.product_scale);
        if (kOptions && arguments_.softcap != 0) score = arguments_.softcap * tanhf(score);
        bool is_seen = true;
        if (kTested) {
          is_seen = step >= begin && step < end;
          if (kOptions && tile.mask_hides)
            is_seen = is_seen && (bits[s / (kScores / kWords)] >> step % 32 & 1) != 0;
        }
        if (kOptions) {
          float added = 0;
          if (kTested && is_seen && problem.bias.data) {
            added = within_limits(bias_at(problem, bias + step * problem.bias.column_stride));
            is_seen = added != -kInfinity;
          }
          if (problem.alibi_slopes) {
            added -= slope * fabsf(distance - static_cast<float>(step));
            added = added < -kMostAdded ? -kMostAdded : added;  // NaN stays NaN
          }
          score += added;
        }
        scores[r][s] = is_seen ? score : -kInfinity;
        all_seen |= static_cast<std::uint32_t>(is_seen) << (r * kScores + s);
      }
    }
    return all_seen;
  }

 private:
  // The keys of a thread's scores are in order, so the first keys are in the first word. The words
  // are shifted so that bit 0 is the thread's first key.
  REGARD_DEVICE void load_bits(std::uint32_t (&bits)[kWords], const KeyTile& tile, int r) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      bits[w] = load_shared<std::uint32_t>(tile.bits + (Tile::row(r) * kWords + w) * 4) >> Tile::first_key();
  }

  const Arguments& arguments_;
  const Entry& entry_;
  const RowTable& rows_;
};

}  // namespace regard::cuda
