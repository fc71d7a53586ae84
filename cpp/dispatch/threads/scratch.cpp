#include "scratch.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "../../platform/memory.hpp"
#include "../no_memory.hpp"
#include "../split.hpp"
#include "layer.hpp"

namespace regard {
namespace {

constexpr std::size_t kLine = 64;
// Pieces of at least half a huge page get whole huge pages: if packed blocks that fill most of L2
// are spread over small, scattered pages, they compete for some of its sets.
constexpr std::size_t kWorthHugePages = kHugePage / 2;
// The memory kept between calls is at most this much for each thread of the largest call so far: a workspace
// within the design's limit, and a wave.
constexpr std::size_t kMostKeptPerThread =
    (std::size_t{2} << 20) + static_cast<std::size_t>(kMostWaveBytesPerThread);
// With few threads, keep as much as the waves of long heads may need.
constexpr std::size_t kAlwaysKept = std::size_t{24} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;  // so that the sanitizer finds accesses beyond the end of a request
#elif defined(__has_feature)
constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
constexpr bool kKeeps = true;
#endif

// Pieces kept for later calls. Each piece begins with a line that holds its size. `size` is only a
// hint until the piece has been taken, because other threads may take pieces and return them
// concurrently. There are no locks: after a fork, a lock that another thread held would stay locked
// in the child.
struct Place {
  std::atomic<char*> piece{nullptr};
  std::atomic<std::size_t> size{0};
};
constexpr int kPlaces = 64;
Place places[kPlaces];
std::atomic<int> used_places{0};  // the others have never held a piece

std::atomic<std::size_t> kept{0};
std::atomic<std::size_t> all{0};
std::atomic<std::size_t> most{0};
std::atomic<std::int64_t> allocations{0};

// Once per process. Otherwise a call's results would be new pages, and a backward pass of
// 1x12x1024x64 would take 1.1 times as long.
void let_malloc_keep_results() {
  static std::atomic<bool> is_done{false};
  if (!is_done.exchange(true, std::memory_order_relaxed)) let_malloc_keep(kAlwaysKept);
}

std::size_t& size_of(char* piece) { return *reinterpret_cast<std::size_t*>(piece); }

template <class T>
void raise_to(std::atomic<T>& largest, T value) {
  T seen = largest.load(std::memory_order_relaxed);
  while (seen < value && !largest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

std::size_t most_kept() {
  const std::size_t threads = static_cast<std::size_t>(most_threads_used());
  return std::max(kAlwaysKept, threads * kMostKeptPerThread);
}

bool is_huge(std::size_t size) { return kKeeps && size >= kWorthHugePages; }

// Rounded up to whole lines or huge pages; less than `size` if the sum overflows.
std::size_t whole_size(std::size_t size) {
  const std::size_t lines = (size + kLine - 1) / kLine * kLine;
  return is_huge(lines) ? (lines + kHugePage - 1) / kHugePage * kHugePage : lines;
}

char* allocate(std::size_t size) {
  const std::size_t whole = whole_size(size);
  if (whole < size) return nullptr;
  let_malloc_keep_results();
  char* const piece = is_huge(whole) ? allocate_huge(whole) : allocate_aligned(kLine, whole);
  if (!piece) return nullptr;
  size_of(piece) = whole;
  allocations.fetch_add(1, std::memory_order_relaxed);
  raise_to(most, all.fetch_add(whole, std::memory_order_relaxed) + whole);
  return piece;
}

void release(char* piece) {
  const std::size_t size = size_of(piece);
  all.fetch_sub(size, std::memory_order_relaxed);
  if (is_huge(size))
    free_huge(piece, size);
  else
    free_aligned(piece);
}

char* take_from(Place& place) {
  char* const piece = place.piece.exchange(nullptr, std::memory_order_acquire);
  if (piece) kept.fetch_sub(size_of(piece), std::memory_order_relaxed);
  return piece;
}

void give_back(char* piece) {
  const std::size_t size = size_of(piece);
  if (kKeeps && kept.fetch_add(size, std::memory_order_relaxed) + size <= most_kept()) {
    for (int i = 0; i < kPlaces; ++i) {
      char* none = nullptr;
      if (!places[i].piece.compare_exchange_strong(none, piece, std::memory_order_release)) continue;
      places[i].size.store(size, std::memory_order_relaxed);
      raise_to(used_places, i + 1);
      return;
    }
  }
  if (kKeeps) kept.fetch_sub(size, std::memory_order_relaxed);
  release(piece);
}

// Takes the smallest piece that is large enough, so that a call that takes several pieces finds the
// pieces that it returned before. If no piece is large enough, the smallest one is released in
// favor of the larger one that is allocated next: the number of kept pieces never exceeds the
// number that was in use at once.
char* take_waiting(std::size_t size) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  Place *best = nullptr, *smallest = nullptr;
  std::size_t best_size = kNone, smallest_size = kNone;
  const int count = used_places.load(std::memory_order_relaxed);
  for (Place* place = places; place < places + count; ++place) {
    if (!place->piece.load(std::memory_order_relaxed)) continue;
    const std::size_t waiting = place->size.load(std::memory_order_relaxed);
    if (waiting >= size && waiting < best_size) {
      best = place;
      best_size = waiting;
    }
    if (waiting < smallest_size) {
      smallest = place;
      smallest_size = waiting;
    }
  }
  Place* const place = best ? best : smallest;
  char* const piece = place ? take_from(*place) : nullptr;
  if (!piece || size_of(piece) >= size) return piece;
  release(piece);
  return nullptr;
}

}  // namespace

Scratch::Scratch(std::int64_t count, std::int64_t bytes, const char* what)
    : stride_((bytes + 63) / 64 * 64), memory_(nullptr) {
  std::size_t size = 0;
  bool is_beyond = __builtin_mul_overflow(stride_, count > 0 ? count : 1, &size);
  is_beyond |= __builtin_add_overflow(size, kLine, &size);
  char* piece = nullptr;
  if (!is_beyond) piece = take_waiting(size);
  if (!is_beyond && !piece) piece = allocate(size);
  if (!piece) throw NoMemory(stride_, what);
  memory_ = piece + kLine;
}

Scratch::~Scratch() { give_back(memory_ - kLine); }

ScratchUse scratch_use() {
  const std::size_t bytes = all.load();
  return {allocations.exchange(0), most.exchange(bytes), bytes, kept.load(), most_kept()};
}

void release_scratch() {
  for (Place& place : places)
    if (char* const piece = take_from(place)) release(piece);
}

}  // namespace regard
