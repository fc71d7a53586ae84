// The pages of caches: random changes of caches and their forks against lists of tokens. A token is a
// number, which every row of a page contains. After every change, each cache must hold its tokens, and
// each page must have as many owners as the tables say. Changes that fail must change nothing.
#include "tests.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../dispatch/page_table.hpp"
#include "testing.hpp"

namespace {

using Tokens = std::vector<std::vector<std::int64_t>>;  // of each entry

constexpr std::int64_t kRows = 4, kLayers = 3;
constexpr std::int64_t kPoolOfLayer[kLayers] = {0, 1, 0};

std::shared_ptr<PagePools> new_pools(std::int64_t most_bytes) {
  auto pools = std::make_shared<PagePools>();
  // Two layers that keep all tokens, and one with a window and first tokens.
  pools->pools.emplace_back(PoolLayout{kRows, kKeepAll, 0, 192, {{0, 2, 8}, {64, 2, 8}}});
  pools->pools.emplace_back(PoolLayout{kRows, 6, 3, 64, {{0, 1, 8}}});
  pools->pool_of_layer.assign(kPoolOfLayer, kPoolOfLayer + kLayers);
  pools->most_bytes = most_bytes;
  return pools;
}

std::int64_t& row_at(const Block& block, std::int32_t page, const PageRegion& region, std::int64_t head,
                     std::int64_t row) {
  return *reinterpret_cast<std::int64_t*>(block->page(page) + region.offset +
                                          (head * kRows + row) * region.row_bytes);
}

struct Cache {
  std::unique_ptr<PageTable> table;
  Tokens tokens;
  Counts before;  // lengths before the last append; empty if it is not known

  Counts lengths() const {
    Counts counts;
    for (const auto& entry : tokens) counts.push_back(static_cast<std::int64_t>(entry.size()));
    return counts;
  }
};

// Appends consecutive numbers from `first` on, to all layers.
bool append(Cache& cache, const Counts& counts, std::int64_t first) {
  try {
    for (std::int64_t layer = 0; layer < kLayers; ++layer)
      cache.table->append(layer, counts, [&](const PageTable::Place& place) {
        const PoolLayout& layout = cache.table->pools()->pools[static_cast<std::size_t>(place.pool)].layout;
        const PoolEntries& entries = place.state.pools[static_cast<std::size_t>(place.pool)];
        std::int64_t token = first;
        for (std::size_t entry = 0; entry < counts.size(); ++entry)
          for (std::int64_t row = place.starts[entry]; row < place.starts[entry] + counts[entry];
               ++row, ++token)
            for (std::size_t region = 0; region < layout.regions.size(); ++region)
              for (std::int64_t head = 0; head < layout.regions[region].heads; ++head)
                if (layout.regions.size() == 1 ||
                    static_cast<std::int64_t>(region) == (layer == 2))  // the layer's own
                  row_at(place.block, entries.row(entry)[row / kRows], layout.regions[region], head,
                         row % kRows) = token;
        return true;
      });
  } catch (const OutOfPages&) {
    cache.table->rollback();
    return false;
  }
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count == 0; })) return true;
  cache.before = cache.lengths();
  for (std::size_t entry = 0; entry < counts.size(); ++entry)
    for (std::int64_t i = 0; i < counts[entry]; ++i) cache.tokens[entry].push_back(first++);
  return true;
}

// Whether a cache holds the tokens that it must.
bool holds(const Cache& cache) {
  const State state = cache.table->state();
  bool agrees = state->lengths == cache.lengths();
  for (std::size_t number = 0; agrees && number < state->pools.size(); ++number) {
    const PagePool& pool = cache.table->pools()->pools[number];
    const PoolLayout& layout = pool.layout;
    const PoolEntries& entries = state->pools[number];
    for (std::size_t entry = 0; entry < cache.tokens.size(); ++entry) {
      const auto length = static_cast<std::int64_t>(cache.tokens[entry].size());
      for (std::int64_t at = 0; at < length; ++at) {
        if (layout.keep_last != kKeepAll && at >= layout.keep_first && at < length - layout.keep_last)
          continue;
        std::int64_t column = at / kRows;
        if (column >= layout.first_pages()) column -= entries.evicted[entry];
        for (const PageRegion& region : layout.regions)
          for (std::int64_t head = 0; head < region.heads; ++head)
            agrees &= column >= 0 && row_at(pool.block, entries.row(entry)[column], region, head,
                                            at % kRows) == cache.tokens[entry][static_cast<std::size_t>(at)];
      }
    }
  }
  return agrees;
}

bool owners_are_right(const std::vector<Cache>& caches) {
  bool agrees = true;
  for (std::size_t number = 0; number < 2; ++number) {
    const PagePool& pool = caches[0].table->pools()->pools[number];
    Counts owners(static_cast<std::size_t>(pool.used()));
    for (const Cache& cache : caches) {
      const State state = cache.table->state();
      const PoolEntries& entries = state->pools[number];
      for (std::size_t entry = 0; entry < state->entries(); ++entry)
        for (std::int64_t column = 0;
             column < pool.layout.pages_for(state->lengths[entry]) - entries.evicted[entry]; ++column)
          ++owners[static_cast<std::size_t>(entries.row(entry)[column])];
    }
    std::int64_t free = 0;
    for (std::int64_t page = 0; page < pool.used(); ++page) {
      agrees &= pool.owners(static_cast<std::int32_t>(page)) == owners[static_cast<std::size_t>(page)];
      free += owners[static_cast<std::size_t>(page)] == 0;
    }
    agrees &= free == pool.free();
  }
  return agrees;
}

// Returns how many changes have failed because no page was left.
int test_changes(unsigned seed, std::int64_t most_bytes) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t most) { return static_cast<std::size_t>(random() % most); };
  std::vector<Cache> caches(1);
  caches[0].table = std::make_unique<PageTable>(new_pools(most_bytes), 2);
  caches[0].tokens.resize(2);
  std::int64_t next = 1;
  int full = 0;
  bool agrees = true;
  for (int turn = 0; turn < 400 && agrees; ++turn) {
    Cache& cache = caches[below(caches.size())];
    Counts chosen;
    for (std::size_t i = below(4); i > 0 && !cache.tokens.empty(); --i)
      chosen.push_back(static_cast<std::int64_t>(below(cache.tokens.size() + 1)) - 1);
    Tokens picked;
    for (const std::int64_t entry : chosen)
      picked.push_back(entry < 0 ? std::vector<std::int64_t>()
                                 : cache.tokens[static_cast<std::size_t>(entry)]);
    switch (below(7)) {
      case 0:
        if (caches.size() < 4) {
          auto fork = cache.table->fork(chosen);
          caches.push_back({std::move(fork), picked, {}});
        } else {
          caches.erase(caches.begin() + 1);
        }
        break;
      case 1:
        cache.table->reorder(chosen);
        cache.tokens = picked;
        cache.before.clear();
        break;
      case 2: {
        Counts lengths = cache.lengths();
        for (std::int64_t& length : lengths)
          length -= std::min<std::int64_t>(length, static_cast<std::int64_t>(below(6)));
        try {
          cache.table->truncate(lengths);
        } catch (const std::invalid_argument&) {  // the window is evicted
          break;
        }
        for (std::size_t entry = 0; entry < lengths.size(); ++entry)
          cache.tokens[entry].resize(static_cast<std::size_t>(lengths[entry]));
        cache.before.clear();
        break;
      }
      case 3: {
        Cache& other = caches[below(caches.size())];
        if (&other == &cache || other.tokens.empty()) break;
        const std::size_t entry = below(other.tokens.size());
        agrees &= cache.table->adopt(*other.table, static_cast<std::int64_t>(entry)) ==
                  static_cast<std::int64_t>(cache.tokens.size());
        cache.tokens.push_back(other.tokens[entry]);
        other.tokens.erase(other.tokens.begin() + static_cast<std::int64_t>(entry));
        cache.before.clear();
        other.before.clear();
        break;
      }
      case 4: {
        if (cache.before.empty()) break;
        const std::size_t entry = below(cache.tokens.size());
        auto& own = cache.tokens[entry];
        Counts positions;
        std::vector<std::int64_t> kept(own.begin(), own.begin() + cache.before[entry]);
        for (std::int64_t at = cache.before[entry]; at < static_cast<std::int64_t>(own.size()); ++at)
          if (below(2)) {
            positions.push_back(at);
            kept.push_back(own[static_cast<std::size_t>(at)]);
          }
        try {
          cache.table->keep(static_cast<std::int64_t>(entry), positions);
          own = kept;
        } catch (const OutOfPages&) {
          ++full;
        }
        break;
      }
      default: {
        Counts counts(cache.tokens.size());
        for (std::int64_t& count : counts) count = static_cast<std::int64_t>(below(below(3) ? 3 : 12));
        full += !append(cache, counts, next);
        next += 100;
      }
    }
    for (const Cache& each : caches) agrees &= holds(each);
    agrees &= owners_are_right(caches);
  }
  check(agrees, "changes of page tables, seed " + std::to_string(seed));
  return full;
}

// Rows that are stored in one layer are seen by no other until all layers have stored theirs.
void test_steps() {
  PageTable table(new_pools(-1), 1);
  int stored = 0;
  const auto store = [&](const PageTable::Place&) { return ++stored != 2; };
  bool agrees =
      table.append(1, {3}, store) && table.state_of(1)->longest == 3 && table.state_of(0)->longest == 0;
  agrees &= !table.append(0, {3}, store) && table.state_of(0)->longest == 0;  // could not be stored
  for (const auto& refused : {std::pair{1, 3}, {0, 2}}) try {
      table.append(refused.first, {refused.second}, store);
      agrees = false;
    } catch (const std::invalid_argument&) {
    }
  try {
    table.truncate({0});
    agrees = false;
  } catch (const std::invalid_argument&) {
  }
  agrees &= table.unfinished() == Counts{0};
  agrees &= table.append(0, {3}, store) && table.append(2, {3}, store) && table.state()->longest == 3 &&
            !table.unfinished();
  agrees &= table.append(2, {5}, store);
  table.rollback();
  agrees &= table.state_of(2)->longest == 3;
  table.close();
  agrees &= table.is_closed() && table.pools()->pools[0].free() == table.pools()->pools[0].used();
  check(agrees, "steps of page tables");
}

// Pages of other pools are copied.
void test_foreign_entries() {
  Cache first{std::make_unique<PageTable>(new_pools(-1), 1), Tokens(1), {}},
      second{std::make_unique<PageTable>(new_pools(4000), 2), Tokens(2), {}};
  append(first, {30}, 1);
  append(second, {5, 1}, 100);
  second.table->adopt(*first.table, 0);
  second.tokens.push_back(first.tokens[0]);
  first.tokens.clear();
  std::vector<Cache> both;
  both.push_back(std::move(first));
  bool agrees = holds(second) && owners_are_right(both);
  both[0] = std::move(second);
  agrees &= owners_are_right(both);
  Cache large{std::make_unique<PageTable>(new_pools(-1), 1), Tokens(1), {}};
  append(large, {60}, 500);
  try {
    both[0].table->adopt(*large.table, 0);
    agrees = false;
  } catch (const OutOfPages&) {
    agrees &= holds(both[0]) && holds(large) && owners_are_right(both);
  }
  check(agrees, "entries of other pools");
}

}  // namespace

void test_page_table() {
  int full = 0;
  for (unsigned seed = 0; seed < 40; ++seed) full += test_changes(seed, seed % 2 ? 2500 : -1);
  check(full > 0, "page tables with a budget");
  test_steps();
  test_foreign_entries();
}
