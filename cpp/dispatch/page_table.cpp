#include "page_table.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "../platform/page_memory.hpp"

namespace regard {
namespace {

constexpr std::int64_t kNotShort = INT64_MAX;  // in `recent`: the last append was not too short

std::string to_text(std::int64_t number) { return std::to_string(number); }

// As Python shows it: one number if all are equal.
std::string to_text(const Counts& counts) {
  if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end())
    return to_text(counts.empty() ? 0 : counts[0]);
  std::string text;
  for (const std::int64_t count : counts) text += (text.empty() ? "[" : ", ") + to_text(count);
  return text + "]";
}

bool are_equal(const Counts& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

std::int64_t columns_of(const PoolLayout& layout, const CacheState& state, const PoolEntries& entries,
                        std::size_t entry) {
  return layout.pages_for(state.lengths[entry]) - entries.evicted[entry];
}

// The pages of all entries, one after another.
PageNumbers held_pages(const PoolLayout& layout, const CacheState& state, const PoolEntries& entries) {
  PageNumbers held;
  for (std::size_t entry = 0; entry < state.entries(); ++entry) {
    const std::int32_t* const row = entries.row(entry);
    held.insert(held.end(), row, row + columns_of(layout, state, entries, entry));
  }
  return held;
}

// A table with more or fewer columns, and room for more entries.
PageNumbers table_of(const PoolEntries& entries, std::size_t count, std::int64_t columns) {
  PageNumbers table(count * static_cast<std::size_t>(columns));
  for (std::size_t entry = 0; entry < entries.evicted.size(); ++entry)
    std::copy_n(entries.row(entry), std::min(columns, entries.columns),
                table.data() + static_cast<std::int64_t>(entry) * columns);
  return table;
}

void set_pages(PoolEntries& entries, PageNumbers pages, std::int64_t columns) {
  entries.pages = std::make_shared<PageNumbers>(std::move(pages));
  entries.columns = columns;
}

CacheState chosen_of(const CacheState& state, const Counts& chosen) {
  CacheState after;
  const auto pick = [&](const Counts& from, std::int64_t otherwise) {
    Counts to;
    for (const std::int64_t entry : chosen)
      to.push_back(entry < 0 ? otherwise : from[static_cast<std::size_t>(entry)]);
    return to;
  };
  after.lengths = pick(state.lengths, 0);
  after.longest = longest_of(after.lengths);
  if (!state.recent.empty()) after.recent = pick(state.recent, kNotShort);
  for (const PoolEntries& entries : state.pools) {
    PoolEntries& of_pool = after.pools.emplace_back();
    of_pool.evicted = pick(entries.evicted, 0);
    PageNumbers pages(chosen.size() * static_cast<std::size_t>(entries.columns));
    for (std::size_t to = 0; to < chosen.size(); ++to)
      if (chosen[to] >= 0)
        std::copy_n(entries.row(static_cast<std::size_t>(chosen[to])), entries.columns,
                    pages.data() + static_cast<std::int64_t>(to) * entries.columns);
    set_pages(of_pool, std::move(pages), entries.columns);
  }
  return after;
}

Counts all_but(std::size_t entries, std::int64_t entry) {
  Counts chosen;
  for (std::int64_t other = 0; other < static_cast<std::int64_t>(entries); ++other)
    if (other != entry) chosen.push_back(other);
  return chosen;
}

// The entries of one state, followed by those of another.
CacheState joined_of(const CacheState& first, const CacheState& second) {
  CacheState after;
  const auto join = [](Counts numbers, const Counts& more) {
    numbers.insert(numbers.end(), more.begin(), more.end());
    return numbers;
  };
  const auto recent_of = [](const CacheState& state) {
    return state.recent.empty() ? Counts(state.entries(), kNotShort) : state.recent;
  };
  after.lengths = join(first.lengths, second.lengths);
  after.longest = std::max(first.longest, second.longest);
  if (!first.recent.empty() || !second.recent.empty())
    after.recent = join(recent_of(first), recent_of(second));
  for (std::size_t pool = 0; pool < first.pools.size(); ++pool) {
    const PoolEntries &own = first.pools[pool], &theirs = second.pools[pool];
    PoolEntries& of_pool = after.pools.emplace_back();
    of_pool.evicted = join(own.evicted, theirs.evicted);
    const std::int64_t columns = std::max(own.columns, theirs.columns);
    PageNumbers pages = table_of(own, first.entries(), columns);
    const PageNumbers more = table_of(theirs, second.entries(), columns);
    pages.insert(pages.end(), more.begin(), more.end());
    set_pages(of_pool, std::move(pages), columns);
  }
  return after;
}

}  // namespace

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
  std::sort(pages.begin(), pages.end());  // so that consecutive pages are written and read together
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

void PagePools::check_budget(std::int64_t more) const {
  if (most_bytes < 0) return;
  std::int64_t bytes = more;
  for (const PagePool& pool : pools) bytes += pool.used() * pool.layout.stride;
  if (bytes > most_bytes)
    throw OutOfPages(
        "the pool of pages is full: pages of %lld bytes are more than max_bytes=%lld; drop or truncate texts "
        "first",
        bytes, most_bytes);
}

// New tokens that become part of the cache when all layers have stored them.
struct PageTable::Step {
  State before, after;
  Counts counts;
  std::vector<PageNumbers> taken, freed;  // of each pool
  std::vector<char> has_stored;           // for each layer
  std::int64_t stored = 0;                // layers
};

PageTable::PageTable(std::shared_ptr<PagePools> pools, std::size_t entries) : pools_(std::move(pools)) {
  CacheState state;
  state.lengths.assign(entries, 0);
  state.pools.resize(pools_->pools.size());
  for (PoolEntries& of_pool : state.pools) of_pool.evicted.assign(entries, 0);
  state_ = std::make_shared<CacheState>(std::move(state));
}

const CacheState& PageTable::opened() const {
  if (!state_) throw std::invalid_argument("the cache is closed");
  return *state_;
}

State PageTable::state() const {
  const std::lock_guard guard(pools_->lock);
  opened();
  return state_;
}

State PageTable::state_of(std::int64_t layer) const {
  const std::lock_guard guard(pools_->lock);
  opened();
  return step_ && step_->has_stored[static_cast<std::size_t>(layer)] ? step_->after : state_;
}

bool PageTable::is_closed() const {
  const std::lock_guard guard(pools_->lock);
  return !state_;
}

std::int64_t PageTable::bytes() const {
  const std::lock_guard guard(pools_->lock);
  std::int64_t bytes = 0;
  for (const PoolEntries& entries : opened().pools)
    bytes += static_cast<std::int64_t>(entries.pages->size() * sizeof(std::int32_t));
  for (const PagePool& pool : pools_->pools) bytes += pool.used() * pool.layout.stride;
  return bytes;
}

std::optional<Counts> PageTable::unfinished() const {
  const std::lock_guard guard(pools_->lock);
  opened();
  return step_ ? std::optional(step_->before->lengths) : std::nullopt;
}

std::string PageTable::missing_layers() const {
  std::vector<std::size_t> missing;
  for (std::size_t layer = 0; layer < step_->has_stored.size(); ++layer)
    if (!step_->has_stored[layer]) missing.push_back(layer);
  if (missing.size() == 1) return "layer " + std::to_string(missing[0]) + " has";
  std::string text = "layers ";
  for (std::size_t i = 0; i < std::min<std::size_t>(missing.size(), 3); ++i)
    text += (i ? ", " : "") + std::to_string(missing[i]);
  return text + (missing.size() > 3 ? ", ..." : "") + " have";
}

State PageTable::unchanging() const {
  opened();
  if (step_)
    throw std::invalid_argument(
        "a step is not finished: " + missing_layers() +
        " not appended yet; they must append first, or rollback() of the KVCaches undoes the step");
  return state_;
}

void PageTable::check_layer(std::int64_t layer) const {
  if (step_->has_stored[static_cast<std::size_t>(layer)])
    throw std::invalid_argument(
        "layer " + to_text(layer) + " has already appended in this step, and " + missing_layers() +
        " not yet: they must append first, or rollback() of the KVCaches undoes the step");
}

void PageTable::check_counts(std::int64_t layer, const Counts& counts) const {
  if (counts == step_->counts) return;
  const auto first =
      std::find(step_->has_stored.begin(), step_->has_stored.end(), 1) - step_->has_stored.begin();
  throw std::invalid_argument("layer " + to_text(layer) + " must append as many tokens as layer " +
                              to_text(first) + " has appended in this step, " + to_text(step_->counts) +
                              ", got " + to_text(counts));
}

void PageTable::check_capacity(const CacheState& state, const Counts& counts) const {
  const std::int64_t capacity = pools_->capacity;
  if (capacity < 0) return;
  for (const PagePool& pool : pools_->pools) {
    const bool keeps_all = pool.layout.keep_last == kKeepAll;
    const std::int64_t most = capacity - pool.layout.keep_first - pool.layout.keep_last;
    std::size_t worst = state.entries();
    for (std::size_t entry = 0; entry < state.entries(); ++entry) {
      const std::int64_t after = state.lengths[entry] + counts[entry];
      const bool is_over = after > capacity && (keeps_all || counts[entry] > most);
      if (is_over && (worst == state.entries() || after > state.lengths[worst] + counts[worst]))
        worst = entry;
    }
    if (worst == state.entries()) continue;
    if (keeps_all)
      throw std::invalid_argument("the cache has capacity " + to_text(capacity) + ", and appending " +
                                  to_text(counts[worst]) + " would make it " +
                                  to_text(state.lengths[worst] + counts[worst]) + " tokens long");
    throw std::invalid_argument(
        "key must have at most " + to_text(most) + " new tokens at once, got " + to_text(counts[worst]) +
        ": they are stored with keep_first=" + to_text(pool.layout.keep_first) +
        " and keep_last=" + to_text(pool.layout.keep_last) + " within capacity " + to_text(capacity));
  }
}

void PageTable::give_back(const std::vector<PageNumbers>& pages) noexcept {
  for (std::size_t pool = 0; pool < pages.size(); ++pool) pools_->pools[pool].give_back(pages[pool]);
}

// Takes pages for new tokens, and removes the pages that no query can see anymore, even if the append
// is undone. Returns the pages that `entries` no longer has, once for each entry that had them.
PageNumbers PageTable::grow(PagePool& pool, const CacheState& before, const Counts& counts,
                            PoolEntries& entries, PageNumbers& taken) {
  const PoolLayout& layout = pool.layout;
  const std::int64_t rows = layout.page_rows, first_pages = layout.first_pages();
  struct Entry {
    std::int64_t owned, needed, expired;
    bool is_copied = false;
  };
  std::vector<Entry> plans;
  std::vector<std::size_t> shared;  // entries that would write to a page with other owners
  std::int64_t new_pages = 0, columns = 0;
  bool has_expired = false;
  for (std::size_t entry = 0; entry < before.entries(); ++entry) {
    const std::int64_t length = before.lengths[entry], evicted = entries.evicted[entry];
    Entry& own = plans.emplace_back();
    own.owned = columns_of(layout, before, entries, entry);
    own.needed = layout.pages_for(length + counts[entry]) - evicted - own.owned;
    if (layout.keep_last != kKeepAll)
      own.expired = std::max<std::int64_t>(0, (length - layout.keep_last) / rows - first_pages - evicted);
    has_expired |= own.expired > 0;
    if (counts[entry] > 0 && length % rows != 0 && pool.owners(entries.row(entry)[own.owned - 1]) > 1)
      shared.push_back(entry);
    new_pages += own.needed;
    columns = std::max(columns, own.owned + own.needed - own.expired);
  }
  // Of several entries with the same page, the longest keeps it unless another cache owns it: its
  // new tokens are stored after all tokens that the state has in the page.
  std::stable_sort(shared.begin(), shared.end(),
                   [&](std::size_t a, std::size_t b) { return before.lengths[a] < before.lengths[b]; });
  std::unordered_map<std::int32_t, std::int64_t> owners;
  for (const std::size_t entry : shared) {
    const std::int32_t page = entries.row(entry)[plans[entry].owned - 1];
    std::int64_t& left = owners.try_emplace(page, pool.owners(page)).first->second;
    if (left > 1) {
      --left;
      ++new_pages;
      plans[entry].is_copied = true;
    }
  }
  if (new_pages == 0 && !has_expired) return {};

  const std::int64_t fresh = std::max<std::int64_t>(0, new_pages - pool.free());
  pools_->check_budget(fresh * layout.stride);
  taken = pool.take(new_pages);
  auto next = taken.begin();
  PageNumbers freed, pages(before.entries() * static_cast<std::size_t>(columns));
  for (const std::size_t entry : shared) {
    if (!plans[entry].is_copied) continue;
    const std::int32_t page = entries.row(entry)[plans[entry].owned - 1];
    pool.copy_rows(pool, page, 0, *next, 0, before.lengths[entry] % rows);
    freed.push_back(page);
    pages[entry * static_cast<std::size_t>(columns) +
          static_cast<std::size_t>(plans[entry].owned - plans[entry].expired - 1)] = *next++;
  }
  for (std::size_t entry = 0; entry < before.entries(); ++entry) {
    const Entry& own = plans[entry];
    const std::int32_t* const from = entries.row(entry);
    std::int32_t* const to = pages.data() + static_cast<std::int64_t>(entry) * columns;
    const std::int64_t first = own.expired > 0 ? std::min(own.owned, first_pages) : own.owned;
    const std::int64_t left = own.owned - own.expired, kept = left - (own.is_copied ? 1 : 0);
    std::copy_n(from, std::min(first, kept), to);
    for (std::int64_t column = first; column < kept; ++column) to[column] = from[column + own.expired];
    freed.insert(freed.end(), from + first, from + first + own.expired);
    std::copy_n(next, own.needed, to + left);
    next += own.needed;
    entries.evicted[entry] += own.expired;
  }
  set_pages(entries, std::move(pages), columns);
  return freed;
}

std::shared_ptr<PageTable::Step> PageTable::plan(const State& before, const Counts& counts) {
  auto step = std::make_shared<Step>();
  step->before = before;
  step->counts = counts;
  step->has_stored.assign(pools_->pool_of_layer.size(), 0);
  step->taken.resize(pools_->pools.size());
  CacheState after;
  after.pools = before->pools;
  after.lengths = before->lengths;
  for (std::size_t entry = 0; entry < counts.size(); ++entry) after.lengths[entry] += counts[entry];
  after.longest = longest_of(after.lengths);
  if (!are_equal(counts)) after.recent = counts;
  after.before = before->lengths;
  after.recent_before = before->recent;
  try {
    for (std::size_t pool = 0; pool < after.pools.size(); ++pool)
      step->freed.push_back(grow(pools_->pools[pool], *before, counts, after.pools[pool], step->taken[pool]));
    step->after = std::make_shared<CacheState>(std::move(after));
  } catch (...) {
    give_back(step->taken);
    throw;
  }
  return step;
}

bool PageTable::append(std::int64_t layer, const Counts& counts, const Store& store) {
  std::unique_lock guard(pools_->lock);
  if (counts.size() != opened().entries())
    throw std::invalid_argument("the cache has changed while tokens were appended to it");
  if (step_) {
    check_layer(layer);
    check_counts(layer, counts);
  }
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count == 0; })) return true;
  std::shared_ptr<Step> step = step_;
  if (!step) {
    check_capacity(*state_, counts);
    step = plan(state_, counts);
  }
  const std::int64_t pool = pools_->pool_of_layer[static_cast<std::size_t>(layer)];
  const PagePool& of_layer = pools_->pools[static_cast<std::size_t>(pool)];
  const auto undo = [&] {
    if (step != step_) give_back(step->taken);
  };
  bool is_stored = false;
  try {
    Counts starts = step->before->lengths;
    const Counts& evicted = step->after->pools[static_cast<std::size_t>(pool)].evicted;
    for (std::size_t entry = 0; entry < starts.size(); ++entry)
      starts[entry] -= evicted[entry] * of_layer.layout.page_rows;
    // While rows are stored, other caches may change, and the pages may move.
    for (Block block; block != of_layer.block;) {
      block = of_layer.block;
      guard.unlock();
      is_stored = store({*step->after, pool, starts, block});
      guard.lock();
    }
  } catch (...) {
    if (!guard.owns_lock()) guard.lock();
    undo();
    throw;
  }
  if (!is_stored) {
    undo();
    return false;
  }
  step->has_stored[static_cast<std::size_t>(layer)] = 1;
  if (++step->stored < static_cast<std::int64_t>(step->has_stored.size())) {
    step_ = step;
  } else {
    state_ = step->after;
    step_ = nullptr;
    give_back(step->freed);
  }
  return true;
}

void PageTable::rollback() {
  const std::lock_guard guard(pools_->lock);
  opened();
  if (step_) give_back(step_->taken);
  step_ = nullptr;
}

void PageTable::truncate(const Counts& lengths) {
  const std::lock_guard guard(pools_->lock);
  const State before = unchanging();
  CacheState after;
  after.lengths = lengths;
  after.longest = longest_of(lengths);
  if (before->before && lengths == *before->before)
    after.recent = before->recent_before;  // undoes the last append
  after.pools = before->pools;
  std::vector<PageNumbers> freed(after.pools.size());
  for (std::size_t pool = 0; pool < after.pools.size(); ++pool) {
    const PoolLayout& layout = pools_->pools[pool].layout;
    PoolEntries& entries = after.pools[pool];
    const std::int64_t first_tokens = layout.first_pages() * layout.page_rows;
    for (std::size_t entry = 0; entry < lengths.size(); ++entry) {
      const std::int64_t columns = columns_of(layout, *before, entries, entry), length = lengths[entry];
      std::int64_t& evicted = entries.evicted[entry];
      const std::int64_t first = first_tokens + evicted * layout.page_rows;  // after the evicted tokens
      if (evicted > 0 && length < before->lengths[entry] && length > first_tokens &&
          length - layout.keep_last < first)
        throw std::invalid_argument(
            "length must be at least " + to_text(first + layout.keep_last) + " for batch entry " +
            to_text(static_cast<std::int64_t>(entry)) + ", whose positions before " + to_text(first) +
            " are evicted, or at most " + to_text(first_tokens) + ", got " + to_text(length));
      if (length <= first_tokens) evicted = 0;  // an entry with only first pages has no evicted pages
      const std::int32_t* const row = entries.row(entry);
      freed[pool].insert(freed[pool].end(), row + layout.pages_for(length) - evicted, row + columns);
    }
  }
  state_ = std::make_shared<CacheState>(std::move(after));
  give_back(freed);
}

void PageTable::reorder(const Counts& chosen) {
  const std::lock_guard guard(pools_->lock);
  const State before = unchanging();
  const State after = std::make_shared<CacheState>(chosen_of(*before, chosen));
  std::vector<PageNumbers> shared, freed;
  for (std::size_t pool = 0; pool < before->pools.size(); ++pool) {
    const PoolLayout& layout = pools_->pools[pool].layout;
    shared.push_back(held_pages(layout, *after, after->pools[pool]));
    freed.push_back(held_pages(layout, *before, before->pools[pool]));
  }
  for (std::size_t pool = 0; pool < shared.size(); ++pool) pools_->pools[pool].share(shared[pool]);
  state_ = after;
  give_back(freed);
}

std::unique_ptr<PageTable> PageTable::fork(const Counts& chosen) {
  auto fork = std::make_unique<PageTable>(pools_, 0);  // before the lock, which its destructor takes
  const std::lock_guard guard(pools_->lock);
  const State after = std::make_shared<CacheState>(chosen_of(*unchanging(), chosen));
  std::vector<PageNumbers> shared;
  for (std::size_t pool = 0; pool < after->pools.size(); ++pool)
    shared.push_back(held_pages(pools_->pools[pool].layout, *after, after->pools[pool]));
  for (std::size_t pool = 0; pool < shared.size(); ++pool) pools_->pools[pool].share(shared[pool]);
  fork->state_ = after;
  return fork;
}

std::int64_t PageTable::adopt(PageTable& other, std::int64_t entry) {
  std::unique_lock<std::mutex> guard(pools_->lock, std::defer_lock),
      theirs(other.pools_->lock, std::defer_lock);
  if (pools_ == other.pools_) {
    guard.lock();
  } else {
    std::lock(guard, theirs);
  }
  const State before = unchanging(), from = other.unchanging();
  CacheState moved = chosen_of(*from, {entry});
  const State left = std::make_shared<CacheState>(chosen_of(*from, all_but(from->entries(), entry)));
  std::vector<PageNumbers> taken(moved.pools.size()), freed(moved.pools.size());
  State after;
  try {
    for (std::size_t number = 0; number < moved.pools.size() && pools_ != other.pools_; ++number) {
      PagePool& pool = pools_->pools[number];
      freed[number] = held_pages(pool.layout, moved, moved.pools[number]);
      const auto count = static_cast<std::int64_t>(freed[number].size());
      pools_->check_budget(std::max<std::int64_t>(0, count - pool.free()) * pool.layout.stride);
      taken[number] = pool.take(count);
      for (std::size_t i = 0; i < taken[number].size(); ++i)
        pool.copy_rows(other.pools_->pools[number], freed[number][i], 0, taken[number][i], 0,
                       pool.layout.page_rows);
      set_pages(moved.pools[number], taken[number], count);
    }
    after = std::make_shared<CacheState>(joined_of(*before, moved));
  } catch (...) {
    give_back(taken);
    throw;
  }
  state_ = after;
  other.state_ = left;
  if (pools_ != other.pools_) other.give_back(freed);
  return static_cast<std::int64_t>(before->entries());
}

std::int64_t PageTable::length_before(std::int64_t entry) const {
  const std::lock_guard guard(pools_->lock);
  const CacheState& state = *unchanging();
  if (!state.before)
    throw std::invalid_argument("keep must follow the append of the tokens that it chooses from");
  return (*state.before)[static_cast<std::size_t>(entry)];
}

void PageTable::keep(std::int64_t number, const Counts& positions) {
  const std::lock_guard guard(pools_->lock);
  const State before = unchanging();
  const auto entry = static_cast<std::size_t>(number);
  const std::int64_t start = (*before->before)[entry],
                     length = start + static_cast<std::int64_t>(positions.size());
  CacheState after = *before;
  after.lengths[entry] = length;
  after.longest = longest_of(after.lengths);
  Counts added = after.lengths;  // by the last append
  for (std::size_t i = 0; i < added.size(); ++i) added[i] -= (*before->before)[i];
  after.recent = are_equal(added) ? Counts() : added;
  std::vector<PageNumbers> taken(after.pools.size()), freed(after.pools.size());
  try {
    for (std::size_t of_pool = 0; of_pool < after.pools.size(); ++of_pool) {
      PagePool& pool = pools_->pools[of_pool];
      const PoolLayout& layout = pool.layout;
      PoolEntries& entries = after.pools[of_pool];
      const std::int64_t rows = layout.page_rows, first = start / rows;  // the first page that changes
      const std::int64_t evicted = first >= layout.first_pages() ? entries.evicted[entry] : 0;
      const std::int64_t count = layout.pages_for(length) - first;
      pools_->check_budget(std::max<std::int64_t>(0, count - pool.free()) * layout.stride);
      taken[of_pool] = pool.take(count);
      const std::int32_t* const row = entries.row(entry);
      for (std::int64_t at = first * rows; at < length; ++at) {
        const std::int64_t from = at < start ? at : positions[static_cast<std::size_t>(at - start)];
        pool.copy_rows(pool, row[from / rows - evicted], from % rows,
                       taken[of_pool][static_cast<std::size_t>(at / rows - first)], at % rows, 1);
      }
      freed[of_pool].assign(row + first - evicted, row + columns_of(layout, *before, entries, entry));
      PageNumbers pages = *entries.pages;
      std::copy(taken[of_pool].begin(), taken[of_pool].end(),
                pages.data() + number * entries.columns + first - evicted);
      set_pages(entries, std::move(pages), entries.columns);
    }
    state_ = std::make_shared<CacheState>(std::move(after));
  } catch (...) {
    give_back(taken);
    throw;
  }
  give_back(freed);
}

void PageTable::restore(const CacheState& state, const std::vector<Block>& blocks, const Counts& used) {
  const std::lock_guard guard(pools_->lock);
  const State restored = std::make_shared<CacheState>(state);
  for (std::size_t number = 0; number < blocks.size(); ++number) {
    PagePool& pool = pools_->pools[number];
    pool.set(blocks[number], used[number], held_pages(pool.layout, state, state.pools[number]));
  }
  state_ = restored;
}

void PageTable::close() noexcept {
  const std::lock_guard guard(pools_->lock);
  if (!state_) return;
  if (step_) give_back(step_->taken);
  for (std::size_t number = 0; number < pools_->pools.size(); ++number) {
    PagePool& pool = pools_->pools[number];
    const PoolEntries& entries = state_->pools[number];
    for (std::size_t entry = 0; entry < state_->entries(); ++entry) {
      const std::int32_t* const row = entries.row(entry);
      for (std::int64_t column = 0; column < columns_of(pool.layout, *state_, entries, entry); ++column)
        pool.give_back(row[column]);
    }
  }
  state_ = nullptr;
  step_ = nullptr;
}

}  // namespace regard
