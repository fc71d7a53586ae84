// Says what a strip sees of a block of keys: one of four kinds for every tile.
//
// Positions give intervals. A bool mask is read once, a word of a tile's keys at a time: the words'
// conjunction and disjunction tell whether a tile is all True or all False. A float mask and ALiBi are
// brought into lanes. All of them end up in `bias`, what score_rule.hpp adds to a score: -inf hides it, and
// 0 leaves its bits alone.
#pragma once

#include "../../simd/transpose.hpp"
#include "../elements.hpp"
#include "../mask_value.hpp"
#include "../pack.hpp"
#include "score_rule.hpp"
#include "visibility.hpp"

namespace regard {
namespace {

enum class TileKind : unsigned char {
  hidden,   // from every lane: not computed
  visible,  // to every lane, nothing added
  biased,   // to every lane, with what bias holds
  hiding,   // bias holds -inf somewhere
};

// Finds every lane's row of a mask, bool or float, from a key on. Lanes beyond the last row repeat it.
template <class M, class T>
REGARD_INLINE void mask_rows(const AttentionProblem& problem, const Operand& mask, const void* data,
                             const StripRows<T>& strip, std::int64_t key, const M** rows) {
  row_pointers(problem, mask, data, strip, key, rows);
  for (int lane = strip.rows; lane < strip.vectors * kLanes<T>; ++lane) rows[lane] = rows[lane - 1];
}

// Whether one row of the mask serves every lane, as in a mask over keys alone.
REGARD_INLINE bool lanes_share_a_row(const AttentionProblem& problem, const Operand& mask) {
  return mask.row_stride == 0 && (mask.head_stride == 0 || problem.heads == problem.kv_heads);
}

// Prefetches one of `parts` parts of what a strip will read of a mask. Its rows lie too far apart for
// the processor to prefetch them, and all requests at once would fill its queue. Inline, since GCC removes
// a call that only prefetches.
template <class T>
REGARD_INLINE void prefetch_mask(const AttentionProblem& problem, const Operand& mask,
                                 const void* data, const StripRows<T>& strip, std::int64_t key, int keys,
                                 int part, int parts) {
  if (!data || mask.column_stride != 1 || lanes_share_a_row(problem, mask) ||
      key >= strip.seen.window.end)
    return;
  const std::int64_t bytes = mask.element == Element::boolean   ? 1
                             : mask.element == Element::float32 ? 4
                                                                : 8;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const char* first = static_cast<const char*>(data) + key * bytes;
  for (int lane = strip.rows * part / parts; lane < strip.rows * (part + 1) / parts; ++lane) {
    const std::int64_t row = strip.first_row + lane;
    const char* from =
        first + (row / group * mask.row_stride + row % group * mask.head_stride) * bytes;
    for (std::int64_t byte = 0; byte < keys * bytes + 63; byte += 64)
      __builtin_prefetch(from + byte, 0, 2);
  }
}

// bias[key][lane] = the float mask, for the `keys` keys from `key` on.
template <class Shape, class M, class T = typename Shape::Element>
REGARD_NOINLINE void load_bias(const AttentionProblem& problem, const AttentionTask& task,
                               const StripRows<T>& strip, std::int64_t key, int keys, T* bias) {
  const int width = strip.vectors * kLanes<T>;
  const std::int64_t stride = problem.bias.column_stride;
  const M* rows[Shape::kStripLanes];
  mask_rows(problem, problem.bias, task.bias, strip, key, rows);
  if (lanes_share_a_row(problem, problem.bias)) {
    const M* row = rows[0];
    for (int k = 0; k < keys; ++k) {
      const Vec<T> value = in_log2_units<T>(broadcast(mask_value<T>(row[k * stride])));
      for (int lane = 0; lane < width; lane += kLanes<T>) store(bias + k * width + lane, value);
    }
    return;
  }
  if constexpr (sizeof(M) == sizeof(T)) {
    for (int lane = 0; lane < width; lane += kLanes<T>)
      rows_to_lanes<T>(rows + lane, kLanes<T>, stride, keys, bias + lane, width,
                       [](Vec<T> value) { return in_log2_units<T>(value); });
  } else {
    for (int k = 0; k < keys; ++k)
      for (int lane = 0; lane < width; lane += kLanes<T>) {
        T gathered[kLanes<T>];
        for (int i = 0; i < kLanes<T>; ++i) gathered[i] = mask_value<T>(rows[lane + i][k * stride]);
        store(bias + k * width + lane, in_log2_units<T>(load<T>(gathered)));
      }
  }
}

// The kind of a tile by a number of vectors of bias: all of them -inf, all 0, none -inf, or some. Bits are
// compared, so that NaN is a value like others.
template <class T>
REGARD_NOINLINE TileKind kind_of_bias(const T* bias, int vectors) {
  const Mask<T> minus_infinity = as_bits<T>(broadcast(-kInfinity<T>));
  Mask<T> adds{}, shows{}, hides{};
  for (int i = 0; i < vectors; ++i) {
    const Mask<T> bits = as_bits<T>(load(bias + i * kLanes<T>));
    adds |= bits;
    shows |= bits ^ minus_infinity;
    hides |= bits == minus_infinity;
  }
  if (!any<T>(shows != 0)) return TileKind::hidden;
  if (any<T>(hides)) return TileKind::hiding;
  return any<T>(adds != 0) ? TileKind::biased : TileKind::visible;
}

// bias -= slope |position - key|.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_alibi(const StripRows<T>& strip, std::int64_t key, bool bias_is_set,
                               T* bias) {
  const int width = strip.vectors * kLanes<T>;
  T distance[Shape::kStripLanes];
  for (int lane = 0; lane < width; ++lane)
    distance[lane] = static_cast<T>(strip.positions[lane] - key);
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> from = load(distance + lane);
    const Vec<T> slope = load(strip.slopes + lane);
    for (int r = 0; r < Shape::kRows; ++r) {
      T* at = bias + r * width + lane;
      const Vec<T> added = bias_is_set ? load<T>(at) : Vec<T>{};
      store(at, with_alibi<T>(added, slope, from, broadcast(static_cast<T>(r))));
    }
  }
}

// The bytes of a bool mask under one lane of a tile, a byte a key.
template <int kRows>
struct MaskWord;
template <>
struct MaskWord<8> {
  typedef std::uint64_t Type;
};
template <>
struct MaskWord<4> {
  typedef std::uint32_t Type;
};

template <int kRows>
REGARD_INLINE typename MaskWord<kRows>::Type read_mask_word(const unsigned char* row,
                                                            std::int64_t stride, int keys) {
  typename MaskWord<kRows>::Type word = 0;
  if (stride == 1 && keys == kRows) {
    __builtin_memcpy(&word, row, sizeof word);
  } else {
    for (int r = 0; r < keys; ++r)
      word |= static_cast<typename MaskWord<kRows>::Type>(row[r * stride] != 0) << (8 * r);
  }
  return word;
}

// The disjunction and the conjunction of the lanes' bytes, a word a tile.
template <int kRows, int kTiles>
struct MaskScan {
  typename MaskWord<kRows>::Type some[kTiles];
  typename MaskWord<kRows>::Type every[kTiles];
};

// A whole block from contiguous rows: 32 bytes at a time, in registers over all lanes.
template <int kRows, int kTiles>
REGARD_NOINLINE void scan_whole_block(const unsigned char* const* rows, int lanes,
                                      MaskScan<kRows, kTiles>& scan) {
  typedef std::uint64_t Bytes __attribute__((vector_size(32), aligned(1), may_alias));
  constexpr int kPieces = kRows * kTiles / 32;
  static_assert(kRows * kTiles % 32 == 0, "a block is a whole number of pieces");
  Bytes some[kPieces], every[kPieces];
#pragma GCC unroll 8
  for (int i = 0; i < kPieces; ++i) some[i] = every[i] = reinterpret_cast<const Bytes*>(rows[0])[i];
  for (int lane = 1; lane < lanes; ++lane) {
    const Bytes* row = reinterpret_cast<const Bytes*>(rows[lane]);
#pragma GCC unroll 8
    for (int i = 0; i < kPieces; ++i) {
      const Bytes bytes = row[i];
      some[i] |= bytes;
      every[i] &= bytes;
    }
  }
  __builtin_memcpy(scan.some, some, sizeof some);
  __builtin_memcpy(scan.every, every, sizeof every);
}

// A part of a block, or rows of another stride.
template <int kRows, int kTiles>
REGARD_NOINLINE void scan_tiles(const unsigned char* const* rows, int lanes, std::int64_t stride,
                                int count, int first, int last, MaskScan<kRows, kTiles>& scan) {
  for (int t = first; t < last; ++t) {
    const int keys = count - t * kRows < kRows ? count - t * kRows : kRows;
    scan.some[t] = scan.every[t] = read_mask_word<kRows>(rows[0] + t * kRows * stride, stride, keys);
    for (int lane = 1; lane < lanes; ++lane) {
      const auto word = read_mask_word<kRows>(rows[lane] + t * kRows * stride, stride, keys);
      scan.some[t] |= word;
      scan.every[t] &= word;
    }
  }
}

// kinds[t] of the tiles [first, last) from a bool mask: hidden, visible, or hiding for a mixture.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void scan_bool_mask(const AttentionProblem& problem, const AttentionTask& task,
                                    const StripRows<T>& strip, std::int64_t block_begin, int count,
                                    int first, int last, TileKind* kinds) {
  constexpr int kRows = Shape::kRows, kTiles = Shape::kBlockKeys / kRows;
  using Word = typename MaskWord<kRows>::Type;
  const unsigned char* rows[Shape::kStripLanes];
  mask_rows(problem, problem.mask, task.mask, strip, block_begin, rows);
  const std::int64_t stride = problem.mask.column_stride;
  const int lanes = lanes_share_a_row(problem, problem.mask) ? 1 : strip.rows;
  MaskScan<kRows, kTiles> scan;
  if (stride == 1 && count == kRows * kTiles) {
    scan_whole_block(rows, lanes, scan);
  } else {
    scan_tiles(rows, lanes, stride, count, first, last, scan);
  }
  // NumPy writes True as 1; any other True makes its tile a mixture, which only costs time.
  constexpr Word kAllTrue = static_cast<Word>(0x0101010101010101u);
  for (int t = first; t < last; ++t) {
    const int keys = count - t * kRows < kRows ? count - t * kRows : kRows;
    const Word wanted = keys == kRows ? kAllTrue : kAllTrue & ((Word{1} << (8 * keys)) - 1);
    kinds[t] = scan.some[t] == 0                     ? TileKind::hidden
               : (scan.every[t] & wanted) == wanted ? TileKind::visible
                                                    : TileKind::hiding;
  }
}

// Writes -inf into one tile's bias where the bool mask is False.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void hide_by_bool_mask(const AttentionProblem& problem, const AttentionTask& task,
                                       const StripRows<T>& strip, std::int64_t key, int keys,
                                       bool bias_is_set, T* bias) {
  constexpr int kRows = Shape::kRows;
  const int width = strip.vectors * kLanes<T>;
  constexpr int kBytes = sizeof(T) < kRows ? static_cast<int>(sizeof(T)) : kRows;
  constexpr int kParts = kRows / kBytes;
  // part[p][lane] holds the bytes of rows p * kBytes and on, in an integer as wide as a lane.
  T part[kParts][Shape::kStripLanes];
  const unsigned char* rows[Shape::kStripLanes];
  mask_rows(problem, problem.mask, task.mask, strip, key, rows);
  for (int lane = 0; lane < width; ++lane) {
    const typename MaskWord<kRows>::Type word =
        read_mask_word<kRows>(rows[lane], problem.mask.column_stride, keys);
    for (int p = 0; p < kParts; ++p) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(word) >> (8 * kBytes * p);
      __builtin_memcpy(&part[p][lane], &bytes, sizeof(T));
    }
  }
  for (int lane = 0; lane < width; lane += kLanes<T>)
    for (int r = 0; r < kRows; ++r) {
      const Mask<T> bytes = as_bits<T>(load(part[r / kBytes] + lane));
      const Mask<T> hidden = (bytes >> (8 * (r % kBytes)) & 0xff) == 0;
      T* at = bias + r * width + lane;
      store(at, select<T>(hidden, broadcast(-kInfinity<T>),
                          bias_is_set ? load<T>(at) : Vec<T>{}));
    }
}

// Writes -inf into one tile's bias where a key lies outside what the lane sees by position.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void hide_by_position(const StripRows<T>& strip, std::int64_t key, bool bias_is_set,
                                      T* bias) {
  constexpr int kRows = Shape::kRows;
  const int width = strip.vectors * kLanes<T>;
  T first[Shape::kStripLanes], end[Shape::kStripLanes];
  for (int lane = 0; lane < width; ++lane) {
    first[lane] = static_cast<T>(clamp(strip.first_key[lane] - key, 0, kRows));
    end[lane] = static_cast<T>(clamp(strip.end_key[lane] - key, 0, kRows));
  }
  const std::int64_t sinks_begin = strip.keep_first.begin - key, sinks_end = strip.keep_first.end - key;
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> from = load(first + lane), to = load(end + lane);
    for (int r = 0; r < kRows; ++r) {
      T* at = bias + r * width + lane;
      const Vec<T> here = broadcast(static_cast<T>(r));
      const bool is_sink_token = r >= sinks_begin && r < sinks_end;
      store(at, select<T>(is_hidden(here, is_sink_token ? Vec<T>{} : from, to),
                          broadcast(-kInfinity<T>), bias_is_set ? load<T>(at) : Vec<T>{}));
    }
  }
}

// kinds[t] of every tile of the block's `count` keys, and the bias of those that need one. Returns
// false where all are hidden.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE bool classify_tiles(const AttentionProblem& problem, const AttentionTask& task,
                                    const StripRows<T>& strip, std::int64_t block_begin, int count,
                                    T* bias, TileKind* kinds) {
  constexpr int kRows = Shape::kRows;
  const int tile_lanes = kRows * strip.vectors * kLanes<T>;
  const int tiles = (count + kRows - 1) / kRows;
  const KeyInterval seen = seen_of_block(strip.seen, block_begin, count);
  const int first = static_cast<int>(seen.begin) / kRows;
  const int last = is_empty(seen) ? first : (static_cast<int>(seen.end) + kRows - 1) / kRows;
  for (int t = 0; t < tiles; ++t)
    kinds[t] = t >= first && t < last ? TileKind::visible : TileKind::hidden;
  if (first >= last) return false;

  if (task.mask)
    scan_bool_mask<Shape>(problem, task, strip, block_begin, count, first, last, kinds);
  if (task.bias) {
    const int keys = (last * kRows < count ? last * kRows : count) - first * kRows;
    const std::int64_t key = block_begin + first * kRows;
    T* to = bias + first * tile_lanes;
    if (problem.bias.element == Element::float32)
      load_bias<Shape, float>(problem, task, strip, key, keys, to);
    else
      load_bias<Shape, double>(problem, task, strip, key, keys, to);
  }

  bool sees_any = false;
  for (int t = first; t < last; ++t) {
    const std::int64_t key = block_begin + t * kRows;
    const int keys = count - t * kRows < kRows ? count - t * kRows : kRows;
    T* tile = bias + t * tile_lanes;
    const bool is_mixed = kinds[t] == TileKind::hiding;
    if (!overlaps(strip.seen, key, key + keys)) kinds[t] = TileKind::hidden;
    if (task.bias && kinds[t] != TileKind::hidden) kinds[t] = kind_of_bias<T>(tile, keys * strip.vectors);
    if (kinds[t] == TileKind::hidden) continue;
    bool is_set = task.bias != nullptr;
    if (strip.slopes) {
      add_alibi<Shape>(strip, key, is_set, tile);
      if (kinds[t] == TileKind::visible) kinds[t] = TileKind::biased;
      is_set = true;
    }
    if (is_mixed) {
      hide_by_bool_mask<Shape>(problem, task, strip, key, keys, is_set, tile);
      kinds[t] = TileKind::hiding;
      is_set = true;
    }
    if (!holds(strip.shared, key, key + kRows)) {
      hide_by_position<Shape>(strip, key, is_set, tile);
      kinds[t] = TileKind::hiding;
    }
    sees_any = true;
  }
  return sees_any;
}

}  // namespace
}  // namespace regard
