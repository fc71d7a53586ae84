// Keys outside, strips inside: all strips of a task see a block of keys before the next block.
#include <algorithm>
#include <vector>

#include "reference.hpp"
#include "tasks.hpp"

constexpr int kStrips = 8;  // of a task: their state stays in L2

//   for each task: kStrips strips of queries                     one thread
//     for each block of keys                                     from memory, once for the task
//       for each strip of the task                               the block is in L1 or L2
//         for each tile of keys: scores -> weights               registers; weights in L1
//         output += weights * values
extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length, int threads) {
  const int strips = length / kQueries;
  in_parallel((strips + kStrips - 1) / kStrips, threads, [=](int task) {
    const int first = task * kStrips, count = std::min(kStrips, strips - first);
    std::vector<Strip> own(count);
    for (int i = 0; i < count; ++i) begin(own[i], query, (first + i) * kQueries);
    for (int at = 0; at < length; at += kKeys)
      for (Strip& s : own)
        add_keys(s, key + at * kDim, value + at * kDim, kKeys, [](Tile&, int) {});
    for (int i = 0; i < count; ++i) finish(own[i], output, (first + i) * kQueries);
  });
}
