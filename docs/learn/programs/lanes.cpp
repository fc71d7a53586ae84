// Strip after strip, block after block: no more scores than one block exist at a time.
#include "online.hpp"

// `length` is a multiple of kQueries and of kKeys.
extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length) {
  Strip s;
  for (int first = 0; first < length; first += kQueries) {
    begin(s, query, first);
    for (int at = 0; at < length; at += kKeys)
      add_keys_online(s, key + at * kDim, value + at * kDim, kKeys);
    finish(s, output, first);
  }
}
