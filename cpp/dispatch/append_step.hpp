// New tokens that become part of a cache when all of its layers have stored them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache_state.hpp"
#include "page_pool.hpp"

namespace regard {

// The caller holds the lock of the pools.
class AppendStep {
 public:
  // Takes pages for this many new tokens of each entry.
  AppendStep(PagePools& pools, const State& before, const Counts& counts);

  // Throws if a layer must not append now, or not this many tokens.
  void check(std::int64_t layer, const Counts& more) const;
  // A layer has stored its tokens. Returns whether all layers have.
  bool store(std::int64_t layer);
  bool has_stored(std::int64_t layer) const { return has_stored_[static_cast<std::size_t>(layer)] != 0; }
  // The layers that have not stored their tokens, with the verb.
  std::string missing_layers() const;

  const State before;
  State after;
  const Counts counts;
  std::vector<PageNumbers> taken, freed;  // of each pool; freed when all layers have stored

 private:
  std::vector<char> has_stored_;  // for each layer
};

}  // namespace regard
