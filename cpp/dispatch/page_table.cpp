#include "page_table.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace regard {
namespace {

// The caller has checked its arguments before it took the lock.
void check_same_entries(bool do_fit) {
  if (!do_fit)
    throw std::invalid_argument("another thread has changed the entries of the cache during the call");
}

void check_chosen(const CacheState& state, const Counts& chosen) {
  for (const std::int64_t entry : chosen)
    check_same_entries(entry < static_cast<std::int64_t>(state.entries()));
}

// The length of an entry before the last append.
std::int64_t length_before_of(const CacheState& state, std::int64_t entry) {
  check_chosen(state, {entry});
  if (!state.before)
    throw std::invalid_argument("keep must follow the append of the tokens that it chooses from");
  return (*state.before)[static_cast<std::size_t>(entry)];
}

Counts all_but(std::size_t entries, std::int64_t entry) {
  Counts chosen;
  for (std::int64_t other = 0; other < static_cast<std::int64_t>(entries); ++other)
    if (other != entry) chosen.push_back(other);
  return chosen;
}

}  // namespace

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
  return step_ && step_->has_stored(layer) ? step_->after : state_;
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

State PageTable::unchanging() const {
  opened();
  if (step_)
    throw std::invalid_argument(
        "a step is not finished: " + step_->missing_layers() +
        " not appended yet; they must append first, or rollback() of the KVCaches undoes the step");
  return state_;
}

std::vector<PageNumbers> PageTable::held_of(const CacheState& state) const {
  std::vector<PageNumbers> held;
  for (std::size_t pool = 0; pool < state.pools.size(); ++pool)
    held.push_back(held_pages(pools_->pools[pool].layout, state, state.pools[pool]));
  return held;
}

bool PageTable::append(std::int64_t layer, const Counts& counts, const Store& store) {
  std::unique_lock guard(pools_->lock);
  check_same_entries(counts.size() == opened().entries());
  if (step_) step_->check(layer, counts);
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count == 0; })) return true;
  const State state = state_;
  const std::shared_ptr<AppendStep> begun = step_;
  const auto step = begun ? begun : std::make_shared<AppendStep>(*pools_, state, counts);
  const std::int64_t pool = pools_->pool_of_layer[static_cast<std::size_t>(layer)];
  const PagePool& of_layer = pools_->pools[static_cast<std::size_t>(pool)];
  const auto undo = [&] {
    if (!begun) pools_->give_back(step->taken);
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
    check_same_entries(state_ == state && step_ == begun);
    step->check(layer, counts);
  } catch (...) {
    if (!guard.owns_lock()) guard.lock();
    undo();
    throw;
  }
  if (!is_stored) {
    undo();
    return false;
  }
  if (!step->store(layer)) {
    step_ = step;
  } else {
    state_ = step->after;
    step_ = nullptr;
    pools_->give_back(step->freed);
  }
  return true;
}

void PageTable::rollback() {
  const std::lock_guard guard(pools_->lock);
  opened();
  if (step_) pools_->give_back(step_->taken);
  step_ = nullptr;
}

void PageTable::truncate(const Counts& lengths) {
  const std::lock_guard guard(pools_->lock);
  const State before = unchanging();
  check_same_entries(std::equal(lengths.begin(), lengths.end(), before->lengths.begin(),
                                before->lengths.end(), std::less_equal<>()));
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
        throw std::invalid_argument("length must be at least " + std::to_string(first + layout.keep_last) +
                                    " for batch entry " + std::to_string(static_cast<std::int64_t>(entry)) +
                                    ", whose positions before " + std::to_string(first) +
                                    " are evicted, or at most " + std::to_string(first_tokens) + ", got " +
                                    std::to_string(length));
      if (length <= first_tokens) evicted = 0;  // an entry with only first pages has no evicted pages
      const std::int32_t* const row = entries.row(entry);
      freed[pool].insert(freed[pool].end(), row + layout.pages_for(length) - evicted, row + columns);
    }
  }
  state_ = std::make_shared<CacheState>(std::move(after));
  pools_->give_back(freed);
}

State PageTable::shared(const Counts& chosen) const {
  const State before = unchanging();
  check_chosen(*before, chosen);
  State after = std::make_shared<CacheState>(chosen_of(*before, chosen));
  const std::vector<PageNumbers> held = held_of(*after);
  for (std::size_t pool = 0; pool < held.size(); ++pool) pools_->pools[pool].share(held[pool]);
  return after;
}

void PageTable::reorder(const Counts& chosen) {
  const std::lock_guard guard(pools_->lock);
  const std::vector<PageNumbers> freed = held_of(opened());
  state_ = shared(chosen);
  pools_->give_back(freed);
}

std::unique_ptr<PageTable> PageTable::fork(const Counts& chosen) {
  auto fork = std::make_unique<PageTable>(pools_, 0);  // before the lock, which its destructor takes
  const std::lock_guard guard(pools_->lock);
  fork->origin_ = state_;
  fork->state_ = shared(chosen);
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
  check_chosen(*from, {entry});
  CacheState moved = chosen_of(*from, {entry});
  const State left = std::make_shared<CacheState>(chosen_of(*from, all_but(from->entries(), entry)));
  std::vector<PageNumbers> taken(moved.pools.size());
  const std::vector<PageNumbers> freed = other.held_of(moved);
  State after;
  try {
    for (std::size_t number = 0; number < moved.pools.size() && pools_ != other.pools_; ++number) {
      PagePool& pool = pools_->pools[number];
      const auto count = static_cast<std::int64_t>(freed[number].size());
      taken[number] = pools_->take(number, count);
      for (std::size_t i = 0; i < taken[number].size(); ++i)
        pool.copy_rows(other.pools_->pools[number], freed[number][i], 0, taken[number][i], 0,
                       pool.layout.page_rows);
      set_pages(moved.pools[number], taken[number], count);
    }
    after = std::make_shared<CacheState>(joined_of(*before, moved));
  } catch (...) {
    pools_->give_back(taken);
    throw;
  }
  state_ = after;
  other.state_ = left;
  if (pools_ != other.pools_) other.pools_->give_back(freed);
  return static_cast<std::int64_t>(before->entries());
}

void PageTable::exchange(PageTable& fork) {
  const std::lock_guard guard(pools_->lock);
  check_same_entries(unchanging() == fork.origin_.lock());
  state_.swap(fork.state_);
}

std::int64_t PageTable::length_before(std::int64_t entry) const {
  const std::lock_guard guard(pools_->lock);
  return length_before_of(*unchanging(), entry);
}

void PageTable::keep(std::int64_t number, const Counts& positions) {
  const std::lock_guard guard(pools_->lock);
  const State before = unchanging();
  const std::int64_t start = length_before_of(*before, number),
                     length = start + static_cast<std::int64_t>(positions.size());
  const auto entry = static_cast<std::size_t>(number);
  check_same_entries(positions.empty() ||
                     (start <= positions.front() && positions.back() < before->lengths[entry]));
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
      const std::int64_t rows = layout.page_rows,
                         first = start / rows;  // the first page that changes
      const std::int64_t evicted = first >= layout.first_pages() ? entries.evicted[entry] : 0;
      const std::int64_t count = layout.pages_for(length) - first;
      taken[of_pool] = pools_->take(of_pool, count);
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
    pools_->give_back(taken);
    throw;
  }
  pools_->give_back(freed);
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
  if (step_) pools_->give_back(step_->taken);
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
