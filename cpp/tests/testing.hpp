// Shared by the kernel tests: counted checks, types by name, arrays as operands.
#pragma once

#include <cmath>
#include <cstdio>
#include <deque>
#include <string>

#include "../dispatch/threads/parallel_for.hpp"
#include "../dispatch/targets.hpp"
#include "guarded.hpp"

using namespace regard;

inline int passed = 0, failed = 0;

inline void check(bool ok, const std::string& what) {
  (ok ? passed : failed) += 1;
  if (!ok) std::printf("FAILED %s on %s\n", what.c_str(), active_target().name);
}

template <class T>
constexpr Scalar kScalar = sizeof(T) == 4 ? Scalar::float32 : Scalar::float64;
template <class T>
constexpr Element kElement = sizeof(T) == 1   ? Element::boolean
                             : sizeof(T) == 4 ? Element::float32
                                              : Element::float64;
template <class T>
constexpr const char* kName = sizeof(T) == 4 ? "float32" : "float64";
constexpr StopSignal kNoSignal{nullptr, nullptr};

// Sizes or strides of one batch axis, which stay valid until the tests end.
inline const std::int64_t* one_axis(std::int64_t number) {
  static std::deque<std::int64_t> kept;
  return &kept.emplace_back(number);
}

inline BatchShape batch_of(std::int64_t count) { return {1, count, one_axis(count)}; }

// A contiguous (batch, heads, rows, columns) array, or every step-th column of one.
template <class T>
Operand operand(T* data, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                std::int64_t step = 1) {
  Operand made{};
  made.data = data;
  made.element = kElement<T>;
  made.column_stride = step;
  made.row_stride = columns * step;
  made.head_stride = rows * columns * step;
  made.batch_strides = one_axis(heads * rows * columns * step);
  return made;
}

// A problem with a case's sizes, in which every query sees all keys. Its arrays and options must
// still be set.
template <class T, class Case>
AttentionProblem problem_of_sizes(const Case& c, std::int64_t batch = 1) {
  AttentionProblem problem{};
  problem.scalar = kScalar<T>;
  problem.window_left = problem.window_right = kUnbounded;
  problem.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  problem.batch = batch_of(batch);
  problem.heads = c.heads;
  problem.kv_heads = c.kv_heads;
  problem.q_len = c.q_len;
  problem.kv_len = c.kv_len;
  problem.head_dim = c.head_dim;
  problem.value_dim = c.value_dim;
  return problem;
}
