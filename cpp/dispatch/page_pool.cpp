#include "page_pool.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "../platform/page_memory.hpp"

namespace regard {

OutOfPages::OutOfPages(const char* format, std::int64_t wanted, std::int64_t most) {
  std::snprintf(text_, sizeof text_, format, static_cast<long long>(wanted), static_cast<long long>(most));
}

PageBlock::PageBlock(std::int64_t stride, std::int64_t pages, int descriptor, std::int64_t offset,
                     std::int64_t in_file)
    : stride_(stride), pages_(pages) {
  std::int64_t bytes = 0;
  const bool fits =
      !__builtin_mul_overflow(stride, pages, &bytes) && !__builtin_add_overflow(bytes, offset, &bytes);
  bytes_ = static_cast<std::size_t>(bytes);
  memory_ = fits && bytes > 0
                ? map_pages(bytes_, descriptor,
                            static_cast<std::size_t>(in_file > 0 ? offset + in_file * stride : 0))
                : nullptr;
  if (!memory_ && bytes > 0) throw OutOfPages("no memory for %lld bytes of keys and values", bytes);
  begin_ = memory_ + (memory_ ? offset : 0);
}

PageBlock::~PageBlock() {
  if (memory_) unmap_pages(memory_, bytes_);
}

// A smaller pool uses none, since its last huge page may be nearly empty.
void PageBlock::use_huge_pages(std::int64_t used) {
  if (is_huge_ || used * stride_ < static_cast<std::int64_t>(huge_page_bytes())) return;
  is_huge_ = true;
  ask_for_huge_pages(memory_, bytes_);
}

void PagePool::reserve(std::int64_t pages) {
  const std::int64_t have = block ? block->pages() : 0;
  if (pages <= have) return;
  if (pages > kMostPages)
    throw OutOfPages("no memory for %lld pages: a cache and its forks have at most %lld", pages, kMostPages);
  const std::int64_t generous = std::min(std::max(pages, 2 * have), kMostPages);
  const std::int64_t all =
      std::min(static_cast<std::int64_t>(free_address_space()) / layout.stride, kMostPages);
  Block longer;
  if (all > generous) try {
      longer = std::make_shared<PageBlock>(layout.stride, all);
    } catch (const OutOfPages&) {  // other mappings use the address space
    }
  if (!longer) longer = std::make_shared<PageBlock>(layout.stride, generous);
  if (block)
    std::memcpy(longer->page(0), block->page(0),
                static_cast<std::size_t>(std::min(used(), have) * layout.stride));
  block = std::move(longer);
}

PageNumbers PagePool::take(std::int64_t count) {
  const std::int64_t again = std::min(count, free()), fresh = count - again;
  if (fresh > 0) {
    reserve(used() + fresh);
    free_.reserve(static_cast<std::size_t>(used() + fresh));
    block->use_huge_pages(used() + fresh);
  }
  PageNumbers pages(free_.end() - again, free_.end());
  pages.reserve(static_cast<std::size_t>(count));
  owners_.resize(static_cast<std::size_t>(used() + fresh));
  free_.resize(static_cast<std::size_t>(free() - again));
  std::sort(pages.begin(),
            pages.end());  // so that consecutive pages are written and read together
  for (std::int64_t page = used() - fresh; page < used(); ++page)
    pages.push_back(static_cast<std::int32_t>(page));
  for (const std::int32_t page : pages) owners_[static_cast<std::size_t>(page)] = 1;
  return pages;
}

void PagePool::share(const PageNumbers& pages) {
  for (const std::int32_t page : pages) ++owners_[static_cast<std::size_t>(page)];
}

void PagePool::give_back(std::int32_t page) noexcept {
  if (--owners_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
}

void PagePool::give_back(const PageNumbers& pages) noexcept {
  for (const std::int32_t page : pages) give_back(page);
}

void PagePool::set(Block with_pages, std::int64_t count, const PageNumbers& owned) {
  block = std::move(with_pages);
  owners_.assign(static_cast<std::size_t>(count), 0);
  free_.reserve(owners_.size());
  share(owned);
  for (std::int64_t page = count; page-- > 0;)
    if (owners(static_cast<std::int32_t>(page)) == 0) free_.push_back(static_cast<std::int32_t>(page));
}

void PagePool::copy_rows(const PagePool& from, std::int32_t page, std::int64_t row, std::int32_t to,
                         std::int64_t to_row, std::int64_t rows) const {
  for (const PageRegion& region : layout.regions)
    for (std::int64_t head = 0; head < region.heads; ++head) {
      const auto at = [&](std::int64_t first) {
        return region.offset + (head * layout.page_rows + first) * region.row_bytes;
      };
      std::memcpy(block->page(to) + at(to_row), from.block->page(page) + at(row),
                  static_cast<std::size_t>(rows * region.row_bytes));
    }
}

PageNumbers PagePools::take(std::size_t pool, std::int64_t count) {
  check_budget(std::max<std::int64_t>(0, count - pools[pool].free()) * pools[pool].layout.stride);
  return pools[pool].take(count);
}

void PagePools::give_back(const std::vector<PageNumbers>& pages) noexcept {
  for (std::size_t pool = 0; pool < pages.size(); ++pool) pools[pool].give_back(pages[pool]);
}

void PagePools::check_budget(std::int64_t more) const {
  if (most_bytes < 0) return;
  std::int64_t bytes = more;
  for (const PagePool& pool : pools) bytes += pool.used() * pool.layout.stride;
  if (bytes > most_bytes)
    throw OutOfPages(
        "the pool of pages is full: pages of %lld bytes are more "
        "than max_bytes=%lld; drop or truncate texts "
        "first",
        bytes, most_bytes);
}

}  // namespace regard
