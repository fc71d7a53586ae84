// The keys or values of a task as they are stored: contiguous or in pages, in any type whose values
// T can represent, or quantized: int8 and float8 with one scale per row, and q4_1 with two numbers
// per group (groups_of_four_bits.hpp). Quantized keys are rotated (hadamard.hpp), unless values are
// read from them.
//
// int8 and float8 rows are multiplied as stored, and their scales are applied afterwards:
//
//   score  = scale[key] (sum over d of rotated query[d] stored[key][d])
//   output = sum over keys of (weight[key] scale[key]) stored[key]
//
// This takes one multiplication per key and row instead of one or two per element.
#pragma once

#include "../problem/attention.hpp"
#include "../simd/lane_parts.hpp"
#include "elements.hpp"
#include "groups_of_four_bits.hpp"
#include "pack.hpp"

namespace regard {
namespace {

struct KvRows {
  const Operand& operand;
  const void* data;
  const Operand& scale_operand;
  const float* scales;  // one per row, or GroupScales; null if there are none
  const std::int32_t* pages;
  std::int64_t page_rows;            // 0 if rows are not in pages
  KeyInterval evicted;               // pages of the entry without a column in `pages`
  std::int64_t foreign_columns = 0;  // if they are another engine's float8
};

// The evicted pages of an entry follow its sink token pages.
REGARD_INLINE KeyInterval evicted_pages_of(const AttentionProblem& problem,
                                           const AttentionTask& task) {
  if (task.evicted_pages == 0) return {};
  const std::int64_t first = (problem.keep_first + problem.page_rows - 1) / problem.page_rows;
  return {first, first + task.evicted_pages};
}

REGARD_INLINE KvRows keys_of(const AttentionProblem& problem, const AttentionTask& task) {
  return {problem.key,
          task.key,
          problem.key_scales,
          task.key_scales,
          task.pages,
          problem.page_rows,
          evicted_pages_of(problem, task),
          problem.has_foreign_float8 ? problem.head_dim : 0};
}

REGARD_INLINE KvRows values_of(const AttentionProblem& problem, const AttentionTask& task) {
  return {problem.value,
          task.value,
          problem.value_scales,
          task.value_scales,
          task.pages,
          problem.page_rows,
          evicted_pages_of(problem, task),
          problem.has_foreign_float8 ? problem.value_dim : 0};
}

// Returns the offset in elements from the operand's first row to a row that is not evicted.
REGARD_INLINE std::int64_t offset_of(const KvRows& rows, const Operand& operand, std::int64_t row) {
  if (rows.page_rows == 0) return row * operand.row_stride;
  std::int64_t column = row / rows.page_rows;
  if (column >= rows.evicted.begin) column -= rows.evicted.end - rows.evicted.begin;
  return rows.pages[column] * operand.page_stride + row % rows.page_rows * operand.row_stride;
}

REGARD_INLINE const void* row_at(const KvRows& rows, std::int64_t row) {
  return static_cast<const char*>(rows.data) +
         offset_of(rows, rows.operand, row) * bytes_of(rows.operand.element);
}

// Whether products with rows are multiplied by scales.
REGARD_INLINE bool scale_products(const KvRows& rows) {
  return rows.scales && has_row_scales(rows.operand.element);
}

// The scale of this row, or of its first group. The following scales in its page are row_stride
// apart.
REGARD_INLINE const float* scales_at(const KvRows& rows, std::int64_t row) {
  return rows.scales + offset_of(rows, rows.scale_operand, row);
}

// Whether consecutive rows starting at `first` are row_stride apart.
REGARD_INLINE bool lie_together(const KvRows& rows, std::int64_t first, std::int64_t count) {
  return rows.page_rows == 0 || first % rows.page_rows + count <= rows.page_rows;
}

// Calls body(done, together, page, at) for each run of contiguous rows starting at `first`, one
// page after another. `done` is the number of rows before the run, and the run starts at row `at`
// of the page. The page is negative if it is evicted, and 0 if rows are not in pages.
template <class Body>
REGARD_INLINE void for_runs(const KvRows& rows, std::int64_t first, std::int64_t count, Body body) {
  if (rows.page_rows == 0) return body(std::int64_t{0}, count, std::int64_t{0}, first);
  std::int64_t page = first / rows.page_rows, at = first % rows.page_rows;
  for (std::int64_t done = 0; done < count; ++page, at = 0) {
    const std::int64_t left = rows.page_rows - at;
    const std::int64_t together = left < count - done ? left : count - done;
    const std::int64_t gone = rows.evicted.end - rows.evicted.begin;
    const std::int64_t column = page < rows.evicted.end ? page : page - gone;
    const bool is_there = page < rows.evicted.begin || page >= rows.evicted.end;
    body(done, together, is_there ? std::int64_t{rows.pages[column]} : std::int64_t{-1}, at);
    done += together;
  }
}

// Copies `count` rows starting at row `first` to rows of padded_columns elements of T, with zeros
// to their right, below them and in place of evicted rows. Integers are not scaled.
template <class T>
REGARD_NOINLINE void copy_rows(const KvRows& rows, std::int64_t first, std::int64_t count,
                               std::int64_t columns, T* to, std::int64_t padded_count,
                               std::int64_t padded_columns) {
  const Operand& operand = rows.operand;
  with_copied_element<T>(operand.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    for_runs(rows, first, count, [&](auto done, auto together, auto page, auto at) {
      const bool is_there = page >= 0;
      const From* from = static_cast<const From*>(rows.data);
      if (is_there) from += page * operand.page_stride + at * operand.row_stride;
      const std::int64_t padding = done + together == count ? padded_count - count : 0;
      if constexpr (kIsNibbles<From>) {
        for (std::int64_t i = 0; is_there && i < together; ++i)
          expand_row(from + i * operand.row_stride, columns, to + (done + i) * padded_columns);
        const std::int64_t filled = is_there ? together : 0;
        copy_padded<T, T>(nullptr, 0, 1, 0, columns, to + (done + filled) * padded_columns,
                          together + padding - filled, padded_columns);
      } else {
        copy_padded<T>(from, operand.row_stride, operand.column_stride, is_there ? together : 0,
                       columns, to + done * padded_columns, together + padding, padded_columns);
      }
    });
  });
  if (count == 0) copy_padded<T, T>(nullptr, 0, 1, 0, columns, to, padded_count, padded_columns);
}

// Lanes kFirst, kFirst + 2, and so on, of two vectors.
template <int kFirst, std::size_t... kLane>
REGARD_INLINE Vec<float> every_second(Vec<float> lower, Vec<float> upper,
                                      std::index_sequence<kLane...>) {
  return __builtin_shufflevector(lower, upper, (2 * static_cast<int>(kLane) + kFirst)...);
}

// Whether some of these rows of E4M3 contain NaN, whose lower seven bits are set.
REGARD_NOINLINE bool have_nan(const Float8* rows, std::int64_t stride, std::int64_t count,
                              std::int64_t columns) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
  Bytes largest{};
  std::uint8_t byte = 0;
  const std::int64_t last = columns - kVectorBytes;
  for (std::int64_t column = 0; last >= 0 && column < columns; column += kVectorBytes) {
    const Float8* from = rows + (column < last ? column : last);
#pragma GCC unroll 4
    for (std::int64_t row = 0; row < count; ++row, from += stride) {
      const Bytes bytes = *reinterpret_cast<const Bytes*>(from) | std::uint8_t{0x80};
      largest = bytes > largest ? bytes : largest;
    }
  }
  for (std::int64_t column = 0; last < 0 && column < columns; ++column)
    for (std::int64_t row = 0; row < count; ++row) {
      const std::uint8_t other = rows[row * stride + column].bits | 0x80u;
      byte = other > byte ? other : byte;
    }
  return byte == 0xff || any<float>(reinterpret_cast<Mask<float>>(largest == 0xff) != 0);
}

// Converts the scales of another engine's float8 to those of Float8: NaN for a row with NaN.
template <class T>
REGARD_NOINLINE void convert_scales(const KvRows& rows, const void* first, std::int64_t count,
                                    T* scales) {
  const auto* const bytes = static_cast<const Float8*>(first);
  const std::int64_t stride = rows.operand.row_stride;
  const bool have = have_nan(bytes, stride, count, rows.foreign_columns);
  for (std::int64_t i = 0; i < count; ++i)
    scales[i] = have && have_nan(bytes + i * stride, stride, 1, rows.foreign_columns)
                    ? static_cast<T>(__builtin_nanf(""))
                    : scales[i] / T(kFloat8Unit);
}

// Copies the scales of rows, with zeros after them and for evicted rows.
template <class T>
REGARD_NOINLINE void copy_scales(const KvRows& rows, std::int64_t first, std::int64_t count, T* to,
                                 std::int64_t padded_count) {
  const std::int64_t stride = rows.scale_operand.row_stride;
  for_runs(rows, first, count, [&](auto done, auto together, auto page, auto at) {
    T* const scales = to + done;
    if (page < 0) {
      for (std::int64_t i = 0; i < together; ++i) scales[i] = T(0);
      return;
    }
    const float* from = rows.scales + page * rows.scale_operand.page_stride + at * stride;
    std::int64_t i = 0;
    for (; stride == 1 && i + kLanes<T> <= together; i += kLanes<T>)
      store(scales + i, load_as<T>(from + i));
    for (; i < together; ++i) scales[i] = static_cast<T>(from[i * stride]);
    if (rows.foreign_columns > 0)
      convert_scales(rows, row_at(rows, first + done), together, scales);
  });
  for (std::int64_t i = count; i < padded_count; ++i) to[i] = T(0);
}

// Copies the scales and minimums of groups: to[group][scale, minimum][padded_count], with zeros
// after them and for evicted rows.
template <class T>
REGARD_NOINLINE void copy_group_scales(const KvRows& rows, std::int64_t first, std::int64_t count,
                                       std::int64_t columns, T* begin, std::int64_t padded) {
  const auto* const all = reinterpret_cast<const GroupScale*>(rows.scales);
  for_runs(rows, first, count, [&](auto done, auto together, auto page, auto at) {
    // Copies, which a store of a vector cannot change, so that they stay in registers.
    const std::int64_t groups = columns / kGroupOfFourBits, stride = rows.scale_operand.row_stride;
    const std::int64_t padded_count = padded;
    T* const to = begin;
    const GroupScale* from =
        all + (page < 0 ? 0 : page * rows.scale_operand.page_stride + at * stride);
    const std::int64_t end = done + together;
    std::int64_t row = done;
    if constexpr (sizeof(T) == 4) {
      const auto store_scales = [=](std::int64_t at_row, std::int64_t group, Vec<T> lanes) {
        const Mask<T> pairs = parts_of<Float16>(as_bits<T>(lanes));
        store(to + 2 * group * padded_count + at_row, part_of<Float16, 0>(pairs));
        store(to + (2 * group + 1) * padded_count + at_row, part_of<Float16, 1>(pairs));
      };
      for (; page >= 0 && groups % 4 == 0 && row + kLanes<T> <= end; row += kLanes<T>) {
        for (std::int64_t group = 0; group < groups; group += 4) {
          Vec<T> fours[4];
          load_fours_transposed(from + group, stride * 4, fours);
          for (int i = 0; i < 4; ++i) store_scales(row, group + i, fours[i]);
        }
        from += kLanes<T> * stride;
      }
      for (; page >= 0 && groups == 2 && stride == 2 && row + kLanes<T> <= end; row += kLanes<T>) {
        const auto* lanes = reinterpret_cast<const T*>(from);
        const Vec<T> lower = load(lanes), upper = load(lanes + kLanes<T>);
        constexpr auto kAll = std::make_index_sequence<static_cast<std::size_t>(kLanes<T>)>();
        store_scales(row, 0, every_second<0>(lower, upper, kAll));
        store_scales(row, 1, every_second<1>(lower, upper, kAll));
        from += kLanes<T> * stride;
      }
    }
    for (; row < end; ++row, from += stride)
      for (std::int64_t group = 0; group < groups; ++group) {
        T* const place = to + 2 * group * padded_count + row;
        place[0] = page < 0 ? T(0) : static_cast<T>(widen(from[group].scale));
        place[padded_count] = page < 0 ? T(0) : static_cast<T>(widen(from[group].minimum));
      }
  });
  for (std::int64_t part = 0; part < 2 * (columns / kGroupOfFourBits); ++part)
    for (std::int64_t i = count; i < padded; ++i) begin[part * padded + i] = T(0);
}

}  // namespace
}  // namespace regard
