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

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace regard {

using Counts = std::vector<std::int64_t>;  // one number for each entry
using PageNumbers = std::vector<std::int32_t>;

inline std::int64_t longest_of(const Counts& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

constexpr std::int64_t kKeepAll = -1;
constexpr std::int64_t kMostPages = 2147483647;  // page tables have 32-bit entries

// Becomes Python's MemoryError.
class OutOfPages : public std::bad_alloc {
 public:
  OutOfPages(const char* format, std::int64_t wanted, std::int64_t most = 0);
  const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

// An array of a page: `heads` times the rows of a page.
struct PageRegion {
  std::int64_t offset;  // in bytes, from the beginning of the page
  std::int64_t heads;
  std::int64_t row_bytes;
};

struct PoolLayout {
  std::int64_t page_rows;
  std::int64_t keep_last;  // the number of last tokens that a query sees, or kKeepAll
  std::int64_t keep_first;
  std::int64_t stride = 0;  // bytes of a page
  std::vector<PageRegion> regions{};

  // The pages of the first tokens, which are never evicted.
  std::int64_t first_pages() const { return (keep_first + page_rows - 1) / page_rows; }
  std::int64_t pages_for(std::int64_t rows) const { return (rows + page_rows - 1) / page_rows; }
};

// Consecutive pages in memory. They do not move.
class PageBlock {
 public:
  // Pages in memory, or the pages of an open file at an offset, followed by pages in memory.
  PageBlock(std::int64_t stride, std::int64_t pages, int descriptor = -1, std::int64_t offset = 0,
            std::int64_t in_file = 0);
  PageBlock(const PageBlock&) = delete;
  PageBlock& operator=(const PageBlock&) = delete;
  ~PageBlock();

  char* page(std::int64_t number) const { return begin_ + number * stride_; }
  std::int64_t pages() const { return pages_; }
  void use_huge_pages(std::int64_t used);

 private:
  std::int64_t stride_, pages_;
  std::size_t bytes_;
  char* memory_;
  char* begin_;
  bool is_huge_ = false;
};

using Block = std::shared_ptr<PageBlock>;

// Pages, each with the number of table entries that refer to it. The caller holds the lock.
class PagePool {
 public:
  explicit PagePool(const PoolLayout& layout) : layout(layout) {}

  // Provides room for this many pages. Pages move only if the system has not provided address space
  // for all of memory.
  void reserve(std::int64_t pages);
  // Returns pages with one owner each, in increasing order.
  PageNumbers take(std::int64_t count);
  void share(const PageNumbers& pages);
  void give_back(std::int32_t page) noexcept;
  void give_back(const PageNumbers& pages) noexcept;
  // Sets the pages that have been read from a file, and their owners.
  void set(Block with_pages, std::int64_t count, const PageNumbers& owned);
  std::int64_t owners(std::int32_t page) const { return owners_[static_cast<std::size_t>(page)]; }
  std::int64_t used() const { return static_cast<std::int64_t>(owners_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  // Copies rows of all heads from a page of this or another pool of the same layout.
  void copy_rows(const PagePool& from, std::int32_t page, std::int64_t row, std::int32_t to,
                 std::int64_t to_row, std::int64_t rows) const;

  const PoolLayout layout;
  Block block;

 private:
  std::vector<std::int32_t> owners_;
  PageNumbers free_;  // has room for all pages, so that giving back does not fail
};

// The pools of a cache and its forks.
struct PagePools {
  // Throws OutOfPages if `more` new bytes exceed the budget.
  void check_budget(std::int64_t more) const;

  std::mutex lock;
  std::vector<PagePool> pools;
  std::vector<std::int64_t> pool_of_layer;
  std::int64_t capacity = -1;    // maximum length of an entry, or -1
  std::int64_t most_bytes = -1;  // budget of all pages, or -1
};

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
  struct Step;

  const CacheState& opened() const;
  // The state, for a change of entries.
  State unchanging() const;
  void check_layer(std::int64_t layer) const;
  void check_counts(std::int64_t layer, const Counts& counts) const;
  void check_capacity(const CacheState& state, const Counts& counts) const;
  std::string missing_layers() const;
  std::shared_ptr<Step> plan(const State& before, const Counts& counts);
  PageNumbers grow(PagePool& pool, const CacheState& before, const Counts& counts, PoolEntries& entries,
                   PageNumbers& taken);
  void give_back(const std::vector<PageNumbers>& pages) noexcept;

  std::shared_ptr<PagePools> pools_;
  State state_;                 // null if the cache is closed
  std::shared_ptr<Step> step_;  // of tokens that some layers have stored and others have not
};

}  // namespace regard
