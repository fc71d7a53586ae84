// Implements the instructions of cpp/cuda/instructions.hpp on the CPU. This header replaces it if
// the compiler is not nvcc. The layouts follow the PTX ISA (9.7.14, matrix instructions);
// test_instructions.cpp compares them with a table that was written independently of this file.
#pragma once

#include <math.h>

#include <cmath>
#include <cstdint>

#include <elements.hpp>

#include "block.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (emulation::self().index)
#define blockIdx (emulation::this_block().index)

// The call site of a wrapper: threads that meet must come from the same place.
#define REGARD_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace regard::cuda {


struct alignas(16) Words4 {
  std::uint32_t word[4];
};

inline unsigned char* dynamic_shared() { return emulation::this_block().shared; }

// A quarter of a warp at a time if each lane has 16 bytes.
template <class T>
void count_accesses(const unsigned char* const* const* addresses) {
  constexpr int kLanesAtOnce = sizeof(T) == 16 ? 8 : 32;
  for (int first = 0; first < emulation::kLanes; first += kLanesAtOnce)
    emulation::count_conflicts(kLanesAtOnce, sizeof(T), [&](int lane) { return *addresses[first + lane]; });
}

template <class T>
T load_shared(const unsigned char* from, REGARD_SITE) {
  {
    const emulation::Unwatched engine;
    emulation::check_read(from, sizeof(T), "load", file, line);
  }
  T value;
  std::memcpy(&value, from, sizeof value);  // by the lane itself, so that the race detector sees which lane reads
  emulation::of_warp<const unsigned char*, int>(
      "load", file, line, from, [](const unsigned char* const** addresses, int**) { count_accesses<T>(addresses); });
  return value;
}

template <class T>
void store_shared(unsigned char* to, const T& value, REGARD_SITE) {
  {
    const emulation::Unwatched engine;
    emulation::mark(emulation::offset_in_shared(to, sizeof(T), "store", file, line), sizeof(T), true);
  }
  std::memcpy(to, &value, sizeof value);
  emulation::of_warp<const unsigned char*, int>(
      "store", file, line, to, [](const unsigned char* const** addresses, int**) { count_accesses<T>(addresses); });
}

inline void arrive(const emulation::Copy& copy) {
  std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
  std::memset(copy.to + copy.bytes, 0, static_cast<std::size_t>(16 - copy.bytes));
}

// The data arrives at once, or only when a thread waits for it. In both cases it counts as missing
// until then.
inline void copy_async(unsigned char* to, const void* from, int bytes, REGARD_SITE) {
  const emulation::Copy copy{to, static_cast<const unsigned char*>(from), bytes};
  bool arrives_now;
  {
    const emulation::Unwatched engine;
    const std::size_t offset = emulation::offset_in_shared(to, 16, "cp.async", file, line);
    if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
      emulation::fail("misaligned global memory", "cp.async", file, line);
    if (bytes < 0 || bytes > 16) emulation::fail("a copy of more than 16 bytes", "cp.async", file, line);
    emulation::mark(offset, 16, false);
    emulation::self().copies.push_back(copy);
    arrives_now = emulation::this_block().random() % 2 != 0;
  }
  if (arrives_now)
    arrive(copy);
  else
    std::memset(to, 0xFF, 16);
}

inline void commit_copies() {
  const emulation::Unwatched engine;
  emulation::Thread& me = emulation::self();
  me.groups.push_back(std::move(me.copies));
  me.copies.clear();
}

template <int kPending>
void wait_for_copies() {
  std::vector<std::vector<emulation::Copy>> arrived;
  {
    const emulation::Unwatched engine;
    auto& groups = emulation::self().groups;
    while (static_cast<int>(groups.size()) > kPending) {
      arrived.push_back(std::move(groups.front()));
      groups.erase(groups.begin());
    }
  }
  for (const auto& group : arrived)
    for (const emulation::Copy& copy : group) {
      arrive(copy);
      const emulation::Unwatched engine;
      emulation::mark(static_cast<std::size_t>(copy.to - emulation::this_block().shared), 16, true);
    }
}

template <bool kTransposed>
Words4 load_matrices(const unsigned char* row, REGARD_SITE) {
  struct Row {
    const unsigned char* address;
    std::uint16_t element[8];
  };
  Row mine{row, {}};
  {
    const emulation::Unwatched engine;
    emulation::check_read(row, 16, "ldmatrix", file, line);
  }
  std::memcpy(mine.element, row, 16);
  return emulation::of_warp<Row, Words4>("ldmatrix", file, line, mine, [](const Row** rows, Words4** words) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const Row* const* const of_matrix = rows + matrix * 8;
      emulation::count_conflicts(8, 16, [&](int lane) { return of_matrix[lane]->address; });
      for (int lane = 0; lane < emulation::kLanes; ++lane) {
        const int a = lane / 4, b = lane % 4 * 2;
        const std::uint32_t low = kTransposed ? of_matrix[b]->element[a] : of_matrix[a]->element[b];
        const std::uint32_t high = kTransposed ? of_matrix[b + 1]->element[a] : of_matrix[a]->element[b + 1];
        words[lane]->word[matrix] = low | high << 16;
      }
    }
  });
}

template <class T>
void multiply_add(float& c0, float& c1, float& c2, float& c3, const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1, REGARD_SITE) {
  struct Input {
    float c[4];
    std::uint32_t a[4], b[2];
  };
  struct Output {
    float c[4];
  };
  const Input mine{{c0, c1, c2, c3}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  const Output sum = emulation::of_warp<Input, Output>(
      "mma", file, line, mine, [](const Input** inputs, Output** outputs) {
        ++emulation::statistics.products;
        float left[16][16], right[8][16];
        for (int lane = 0; lane < emulation::kLanes; ++lane)
          for (int i = 0; i < 8; ++i) {
            const int column = lane % 4 * 2 + i % 2 + i / 4 * 8;
            left[lane / 4 + i / 2 % 2 * 8][column] = float_of(T(), inputs[lane]->a[i / 2] >> (i % 2 * 16) & 0xFFFF);
            if (i < 4)
              right[lane / 4][lane % 4 * 2 + i % 2 + i / 2 * 8] =
                  float_of(T(), inputs[lane]->b[i / 2] >> (i % 2 * 16) & 0xFFFF);
          }
        for (int lane = 0; lane < emulation::kLanes; ++lane)
          for (int i = 0; i < 4; ++i) {
            const float* const row = left[lane / 4 + i / 2 * 8];
            const float* const column = right[lane % 4 * 2 + i % 2];
            float sum = inputs[lane]->c[i];
            for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
            outputs[lane]->c[i] = sum;
          }
      });
  c0 = sum.c[0];
  c1 = sum.c[1];
  c2 = sum.c[2];
  c3 = sum.c[3];
}

inline float rounded_product(float a, float b) { return a * b; }

inline float exp2_approximate(float x) {
  const float power = std::exp2(x);
  return std::fpclassify(power) == FP_SUBNORMAL ? 0.0f : power;
}

// To nearest, ties to even. NaN stays NaN.
template <class T>
std::uint32_t rounded(float value) {
  if constexpr (T::kElement == Element::float16) {
    const auto half = static_cast<_Float16>(value);
    std::uint16_t bits;
    std::memcpy(&bits, &half, sizeof bits);
    return bits;
  } else {
    if (std::isnan(value)) return 0x7FFF;
    const std::uint32_t bits = bits_of_float(value);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  }
}

template <class T>
std::uint32_t pack(float low, float high) {
  return rounded<T>(low) | rounded<T>(high) << 16;
}

template <class T>
T shuffle_xor(T value, int lanes, REGARD_SITE) {
  struct Input {
    T value;
    int lanes;
  };
  return emulation::of_warp<Input, T>("shuffle", file, line, {value, lanes}, [](const Input** inputs, T** outputs) {
    for (int lane = 0; lane < emulation::kLanes; ++lane) *outputs[lane] = inputs[lane ^ inputs[lane]->lanes]->value;
  });
}

inline void block_barrier(REGARD_SITE) { emulation::of_block("barrier", file, line, false); }
inline bool any_thread(bool condition, REGARD_SITE) {
  return emulation::of_block("vote", file, line, condition);
}

}  // namespace regard::cuda
