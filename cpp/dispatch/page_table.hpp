// The pages of caches: which pages hold the tokens of which text, and which pages are free.
//
// A cache has a row of pages for each of its entries. Layers that keep the same tokens share these
// rows and have their keys and values in the same pages; each such group of layers has a pool of
// pages. A cache and its forks share the pools. Full pages stay shared; if the last page of an entry
// has other owners and is not full, it is copied when the entry grows.
//
// Each change happens as a whole or, if it throws, not at all. A state is never written to: a change
// replaces it, so that a reader may keep it. Rows are written only where no state has tokens. Caches
// that share pools may be changed in different threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "append_step.hpp"
#include "cache_state.hpp"

namespace regard {

// The pages of a cache.
class PageTable {
 public:
  // Where new rows of a layer are stored: row r of an entry becomes row starts[entry] + r of its row
  // of pages.
  struct Place {
    const CacheState& state;
    std::int64_t pool;
    const Counts& starts;
    const Block& block;
  };
  // Stores rows, and returns whether they could be stored.
  using Store = std::function<bool(const Place&)>;

  PageTable(std::shared_ptr<PagePools> pools, std::size_t entries);
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable() { close(); }

  // Appends tokens in one layer. They become part of the cache when all layers have appended them;
  // until then, only the layers that have them see them. Returns false, and appends nothing, if they
  // could not be stored.
  bool append(std::int64_t layer, const Counts& counts, const Store& store);
  // Removes the tokens that only some layers have.
  void rollback();
  // Reduces the lengths of entries.
  void truncate(const Counts& lengths);
  // Selects entries, or empty entries for -1.
  void reorder(const Counts& chosen);
  std::unique_ptr<PageTable> fork(const Counts& chosen);
  // Moves an entry of another cache here, and returns its number. Pages of other pools are copied.
  std::int64_t adopt(PageTable& other, std::int64_t entry);
  // Keeps only these tokens of the last append to an entry, one after another.
  void keep(std::int64_t entry, const Counts& positions);
  // Replaces the entries by those of a fork, which gets the entries of this cache. Throws if they have
  // changed since they were forked.
  void exchange(PageTable& fork);
  // The length of an entry before the last append. Throws if other changes have followed.
  std::int64_t length_before(std::int64_t entry) const;
  // Sets the entries that have been read from a file.
  void restore(const CacheState& state, const std::vector<Block>& blocks, const Counts& used);
  void close() noexcept;

  // Throws if the cache is closed.
  State state() const;
  State state_of(std::int64_t layer) const;
  bool is_closed() const;
  // Bytes of the pages that have been used, and of the table.
  std::int64_t bytes() const;
  // The lengths before the tokens that only some layers have, or none.
  std::optional<Counts> unfinished() const;
  const std::shared_ptr<PagePools>& pools() const { return pools_; }

 private:
  const CacheState& opened() const;
  // The state, for a change of entries.
  State unchanging() const;
  // The pages of all entries, in each pool.
  std::vector<PageNumbers> held_of(const CacheState& state) const;
  // The chosen entries, as another owner of their pages.
  State shared(const Counts& chosen) const;

  std::shared_ptr<PagePools> pools_;
  State state_;                             // null if the cache is closed
  std::weak_ptr<const CacheState> origin_;  // the entries of which a fork was made
  std::shared_ptr<AppendStep> step_;        // of tokens that some layers have stored and others have not
};

}  // namespace regard
