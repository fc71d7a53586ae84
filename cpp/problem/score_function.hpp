// A score function supplied by the caller.
#pragma once

#include <cstdint>

namespace regard {

// void f(Number* scores, int64 queries, int64 keys, int64 stride, const int64* query_positions,
//        int64 first_key, int64 head, int64 entry, void* user_data)
//
// changes the scores of some queries of one head and some keys in place. The score of query q and
// key k is scores[k * stride + q]. Number is float or double, the type of the arithmetic. Threads
// call the function concurrently.
struct ScoreFunction {
  void* function;
  void* derivative;  // replaces scores by the function's derivatives there; may be null
  void* user_data;
};

template <class Number>
using ScoreFunctionType = void (*)(Number* scores, std::int64_t queries, std::int64_t keys, std::int64_t stride,
                                   const std::int64_t* query_positions, std::int64_t first_key, std::int64_t head,
                                   std::int64_t entry, void* user_data);

}  // namespace regard
