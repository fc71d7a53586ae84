#include "cache_state.hpp"

#include <algorithm>
#include <utility>

namespace regard {
namespace {

constexpr std::int64_t kNotShort = INT64_MAX;  // in `recent`: the last append was not too short

// A table with more or fewer columns, and space for more entries.
PageNumbers table_of(const PoolEntries& entries, std::size_t count, std::int64_t columns) {
  PageNumbers table(count * static_cast<std::size_t>(columns));
  for (std::size_t entry = 0; entry < entries.evicted.size(); ++entry)
    std::copy_n(entries.row(entry), std::min(columns, entries.columns),
                table.data() + static_cast<std::int64_t>(entry) * columns);
  return table;
}

}  // namespace

std::int64_t columns_of(const PoolLayout& layout, const CacheState& state, const PoolEntries& entries,
                        std::size_t entry) {
  return layout.pages_for(state.lengths[entry]) - entries.evicted[entry];
}

PageNumbers held_pages(const PoolLayout& layout, const CacheState& state, const PoolEntries& entries) {
  PageNumbers held;
  for (std::size_t entry = 0; entry < state.entries(); ++entry) {
    const std::int32_t* const row = entries.row(entry);
    held.insert(held.end(), row, row + columns_of(layout, state, entries, entry));
  }
  return held;
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

}  // namespace regard
