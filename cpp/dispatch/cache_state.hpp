// The entries of a cache at one moment, as values: their lengths and their rows of pages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "page_pool.hpp"

namespace regard {

inline std::int64_t longest_of(const Counts& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

inline bool are_equal(const Counts& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

// The pages of all entries in one pool.
struct PoolEntries {
  std::shared_ptr<const PageNumbers> pages = std::make_shared<PageNumbers>();  // (entries, columns)
  std::int64_t columns = 0;
  Counts evicted;  // evicted pages after the pages of the first tokens; they have no column

  const std::int32_t* row(std::size_t entry) const {
    return pages->data() + static_cast<std::int64_t>(entry) * columns;
  }
};

// The entries of a cache.
struct CacheState {
  std::size_t entries() const { return lengths.size(); }

  Counts lengths;
  std::int64_t longest = 0;
  std::vector<PoolEntries> pools;
  Counts recent;  // the number of tokens that the last append added to each entry; empty if they are equal
  // Before the last append: the lengths, and `recent`. Not known after other changes.
  std::optional<Counts> before;
  Counts recent_before;
};

using State = std::shared_ptr<const CacheState>;

// The pages of one entry in a pool.
std::int64_t columns_of(const PoolLayout& layout, const CacheState& state, const PoolEntries& entries,
                        std::size_t entry);
// The pages of all entries in a pool, one after another.
PageNumbers held_pages(const PoolLayout& layout, const CacheState& state, const PoolEntries& entries);
void set_pages(PoolEntries& entries, PageNumbers pages, std::int64_t columns);
// The entries with these numbers, and empty entries for -1.
CacheState chosen_of(const CacheState& state, const Counts& chosen);
// The entries of one state, followed by those of another.
CacheState joined_of(const CacheState& first, const CacheState& second);

}  // namespace regard
