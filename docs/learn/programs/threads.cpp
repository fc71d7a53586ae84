// The same strips on several cores: a strip belongs to one thread from begin to end.
#include "attend.hpp"
#include "tasks.hpp"

extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length, int threads) {
  in_parallel(length / kQueries, threads, [=](int strip) {
    attend(query, key, value, output, length, strip * kQueries);
  });
}
