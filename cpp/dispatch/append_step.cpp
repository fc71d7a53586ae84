#include "append_step.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace regard {
namespace {

// As Python shows it: one number if all are equal.
std::string to_text(const Counts& counts) {
  if (are_equal(counts)) return std::to_string(counts.empty() ? 0 : counts[0]);
  std::string text;
  for (const std::int64_t count : counts) text += (text.empty() ? "[" : ", ") + std::to_string(count);
  return text + "]";
}

void check_capacity(const PagePools& pools, const CacheState& state, const Counts& counts) {
  const std::int64_t capacity = pools.capacity;
  if (capacity < 0) return;
  for (const PagePool& pool : pools.pools) {
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
      throw std::invalid_argument("the cache has capacity " + std::to_string(capacity) + ", and appending " +
                                  std::to_string(counts[worst]) + " would make it " +
                                  std::to_string(state.lengths[worst] + counts[worst]) + " tokens long");
    throw std::invalid_argument(
        "key must have at most " + std::to_string(most) + " new tokens at once, got " +
        std::to_string(counts[worst]) + ": they are stored with keep_first=" +
        std::to_string(pool.layout.keep_first) + " and keep_last=" + std::to_string(pool.layout.keep_last) +
        " within capacity " + std::to_string(capacity));
  }
}

// Takes pages for new tokens, and removes the pages that no query can see anymore, even if the append
// is undone. Returns the pages that `entries` no longer has, once for each entry that had them.
PageNumbers grow(PagePools& pools, std::size_t number, const CacheState& before, const Counts& counts,
                 PoolEntries& entries, PageNumbers& taken) {
  const PagePool& pool = pools.pools[number];
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

  taken = pools.take(number, new_pages);
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

}  // namespace

AppendStep::AppendStep(PagePools& pools, const State& state, const Counts& counts)
    : before(state), counts(counts), taken(pools.pools.size()), has_stored_(pools.pool_of_layer.size(), 0) {
  check_capacity(pools, *before, counts);
  CacheState grown;
  grown.pools = before->pools;
  grown.lengths = before->lengths;
  for (std::size_t entry = 0; entry < counts.size(); ++entry) grown.lengths[entry] += counts[entry];
  grown.longest = longest_of(grown.lengths);
  if (!are_equal(counts)) grown.recent = counts;
  grown.before = before->lengths;
  grown.recent_before = before->recent;
  try {
    for (std::size_t pool = 0; pool < grown.pools.size(); ++pool)
      freed.push_back(grow(pools, pool, *before, counts, grown.pools[pool], taken[pool]));
    after = std::make_shared<CacheState>(std::move(grown));
  } catch (...) {
    pools.give_back(taken);
    throw;
  }
}

std::string AppendStep::missing_layers() const {
  std::vector<std::size_t> missing;
  for (std::size_t layer = 0; layer < has_stored_.size(); ++layer)
    if (!has_stored_[layer]) missing.push_back(layer);
  if (missing.size() == 1) return "layer " + std::to_string(missing[0]) + " has";
  std::string text = "layers ";
  for (std::size_t i = 0; i < std::min<std::size_t>(missing.size(), 3); ++i)
    text += (i ? ", " : "") + std::to_string(missing[i]);
  return text + (missing.size() > 3 ? ", ..." : "") + " have";
}

bool AppendStep::store(std::int64_t layer) {
  has_stored_[static_cast<std::size_t>(layer)] = 1;
  return std::find(has_stored_.begin(), has_stored_.end(), 0) == has_stored_.end();
}

void AppendStep::check(std::int64_t layer, const Counts& more) const {
  if (has_stored(layer))
    throw std::invalid_argument(
        "layer " + std::to_string(layer) + " has already appended in this step, and " + missing_layers() +
        " not yet: they must append first, or rollback() of the KVCaches undoes the step");
  if (more == counts) return;
  const auto first = std::find(has_stored_.begin(), has_stored_.end(), 1) - has_stored_.begin();
  throw std::invalid_argument("layer " + std::to_string(layer) + " must append as many tokens as layer " +
                              std::to_string(first) + " has appended in this step, " + to_text(counts) +
                              ", got " + to_text(more));
}

}  // namespace regard
