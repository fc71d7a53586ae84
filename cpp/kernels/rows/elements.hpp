// Access to a row of any stride as vectors. The last vector is padded.
#pragma once

#include "../../simd/vec.hpp"

namespace regard {
namespace {

// Returns `count` elements, with `filler` in the lanes after them. Neither this function nor
// `scatter` is inlined: every loop of the stages uses them, and a call costs little compared with
// the work on the elements.
template <class T>
REGARD_NOINLINE Vec<T> gather(const T* from, std::int64_t stride, std::int64_t count, T filler) {
  T lanes[kLanes<T>];
  if (count == kLanes<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) lanes[i] = from[i * stride];
  } else {
    for (int i = 0; i < kLanes<T>; ++i) lanes[i] = i < count ? from[i * stride] : filler;
  }
  return load(lanes);
}

template <class T>
REGARD_NOINLINE void scatter(T* to, std::int64_t stride, std::int64_t count, Vec<T> value) {
  T lanes[kLanes<T>];
  store(lanes, value);
  for (int i = 0; i < kLanes<T> && i < count; ++i) to[i * stride] = lanes[i];
}

// Calls each(vector, first element, number of elements) for the elements from begin to end.
template <class T, class Each>
REGARD_INLINE void for_vectors(const T* row, std::int64_t stride, std::int64_t begin,
                               std::int64_t end, T filler, Each each) {
  constexpr int kWidth = kLanes<T>;
  std::int64_t at = begin;
  if (stride == 1) {
    for (; at + kWidth <= end; at += kWidth) each(load(row + at), at, std::int64_t{kWidth});
    if (at < end) each(gather(row + at, 1, end - at, filler), at, end - at);
    return;
  }
  for (; at < end; at += kWidth) {
    const std::int64_t count = end - at < kWidth ? end - at : kWidth;
    each(gather(row + at * stride, stride, count, filler), at, count);
  }
}

// Likewise, and writes the results of map(vector, first element).
template <class T, class Map>
REGARD_INLINE void map_vectors(const T* row, std::int64_t stride, std::int64_t begin,
                               std::int64_t end, T filler, T* output, std::int64_t output_stride,
                               Map map) {
  if (output_stride == 1) {
    for_vectors<T>(row, stride, begin, end, filler,
                   [&](Vec<T> value, std::int64_t at, std::int64_t count) {
                     const Vec<T> mapped = map(value, at);
                     if (count == kLanes<T>)
                       store(output + at, mapped);
                     else
                       scatter(output + at, 1, count, mapped);
                   });
    return;
  }
  for_vectors<T>(row, stride, begin, end, filler,
                 [&](Vec<T> value, std::int64_t at, std::int64_t count) {
                   scatter(output + at * output_stride, output_stride, count, map(value, at));
                 });
}

// Likewise, for maps in which a vector's result does not depend on other vectors or on its
// position. Whole vectors are written so that they do not cross cache lines, which takes half the
// time.
template <class T, class Map>
REGARD_INLINE void map_aligned(const T* row, std::int64_t stride, std::int64_t begin,
                               std::int64_t end, T* output, std::int64_t output_stride, Map map) {
  constexpr std::size_t kBytes = kLanes<T> * sizeof(T);
  std::int64_t first = begin;
  if (output_stride == 1) {
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(output + begin) % kBytes;
    if (beyond % sizeof(T) == 0 && beyond != 0)
      first += static_cast<std::int64_t>((kBytes - beyond) / sizeof(T));
    if (first > end) first = end;
  }
  map_vectors<T>(row, stride, begin, first, T(0), output, output_stride, map);
  map_vectors<T>(row, stride, first, end, T(0), output, output_stride, map);
}

}  // namespace
}  // namespace regard
