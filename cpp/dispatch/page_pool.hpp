// Pages of memory that caches share, and which of them are free.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace regard {

using Counts = std::vector<std::int64_t>;  // one number for each entry
using PageNumbers = std::vector<std::int32_t>;

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

  // Provides memory for this many pages. Pages move only if the system has not provided address space
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
  PageNumbers free_;  // has space for all pages, so that giving back does not fail
};

// The pools of a cache and its forks.
struct PagePools {
  // Throws OutOfPages if `more` new bytes exceed the budget.
  void check_budget(std::int64_t more) const;
  // Takes pages from a pool, within the budget.
  PageNumbers take(std::size_t pool, std::int64_t count);
  // Gives pages of each pool back.
  void give_back(const std::vector<PageNumbers>& pages) noexcept;

  std::mutex lock;
  std::vector<PagePool> pools;
  std::vector<std::int64_t> pool_of_layer;
  std::int64_t capacity = -1;    // maximum length of an entry, or -1
  std::int64_t most_bytes = -1;  // budget of all pages, or -1
};

}  // namespace regard
