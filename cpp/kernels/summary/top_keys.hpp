// The largest weights of each row in descending order, one row per lane. Among equal weights, the
// smaller key comes first.
//
// Each weight has a key number as wide as its lane, relative to a base, because a key's index may
// exceed 32 bits. The base moves every kKeysOfBase keys: the numbers are converted to 64-bit keys,
// and a number below 0 then refers to a converted key.
#pragma once

#include "summary_workspace.hpp"

namespace regard {
namespace {

template <class T>
REGARD_INLINE Mask<T> load_numbers(const LaneWord<sizeof(T)>* from) {
  Mask<T> numbers;
  __builtin_memcpy(&numbers, from, sizeof numbers);
  return numbers;
}

template <class T>
REGARD_INLINE void store_numbers(LaneWord<sizeof(T)>* to, Mask<T> numbers) {
  __builtin_memcpy(to, &numbers, sizeof numbers);
}

template <class T>
REGARD_INLINE void start_top(TopKeys<T>& top, std::int64_t count, std::int64_t lanes) {
  for (std::int64_t i = 0; i < count * lanes; ++i) {
    top.weights[i] = T(0);
    top.numbers[i] = -1;  // no key: refers to keys[0], which is -1
    top.keys[i] = -1;
  }
  top.base = 0;
}

// Small enough that the numbers of a block that begins below it still fit, large enough that moving
// the base costs nothing.
constexpr std::int64_t kKeysOfBase = std::int64_t{1} << 20;

// Converts the numbers of all places to 64-bit keys.
template <class T>
REGARD_NOINLINE void settle_top(const TopKeys<T>& top, std::int64_t count, std::int64_t lanes) {
  using Number = LaneWord<sizeof(T)>;
  // A key only ever moves to a later place, so the key that a place refers to has not been
  // overwritten yet.
  for (std::int64_t place = count - 1; place >= 0; --place)
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      Number& number = top.numbers[place * lanes + lane];
      std::int64_t& key = top.keys[place * lanes + lane];
      key = number < 0 ? top.keys[(-1 - number) * lanes + lane] : top.base + number;
      number = static_cast<Number>(-1 - place);
    }
}

// Makes room for the numbers of a block that begins with `key`.
template <class T>
REGARD_INLINE void move_base(TopKeys<T>& top, std::int64_t count, std::int64_t lanes,
                             std::int64_t key) {
  if (key - top.base < kKeysOfBase) return;
  settle_top(top, count, lanes);
  top.base = key;
}

// Adds the weights of a tile, [keys][lanes], to the lists of the vector at `lane`. The tile's first
// key is `key`, counted from the base.
//
// Weights smaller than the new weight move down by one place, and the new weight takes the free
// place. All lanes do this together, because nearly all of the work is in the first keys, where
// most lanes have a new weight. All places of a list are updated at once, because no place depends
// on another.
template <class T>
REGARD_NOINLINE void add_to_top(const TopKeys<T>& top, std::int64_t count, const T* tile, int keys,
                                std::int64_t key, std::int64_t lanes, int lane) {
  using Number = LaneWord<sizeof(T)>;
  T* const weights = top.weights + lane;
  Number* const numbers = top.numbers + lane;
  const std::int64_t last = (count - 1) * lanes;
  for (int k = 0; k < keys; ++k) {
    const Vec<T> weight = load<T>(tile + k * lanes + lane);
    if (!any_greater(weight, load<T>(weights + last))) continue;
    const Mask<T> number = Mask<T>{} + static_cast<Number>(key + k);
    Vec<T> here = load<T>(weights + last);
    Mask<T> number_here = load_numbers<T>(numbers + last);
    for (std::int64_t at = last; at >= 0; at -= lanes) {
      const bool is_first = at == 0;
      const Vec<T> above = is_first ? broadcast(kInfinity<T>) : load<T>(weights + at - lanes);
      const Mask<T> number_above = is_first ? Mask<T>{} : load_numbers<T>(numbers + at - lanes);
      const Mask<T> moves = weight > here, moves_above = weight > above;
      store(weights + at, select<T>(moves, select<T>(moves_above, above, weight), here));
      store_numbers<T>(numbers + at, moves ? (moves_above ? number_above : number) : number_here);
      here = above;
      number_here = number_above;
    }
  }
}

}  // namespace
}  // namespace regard
