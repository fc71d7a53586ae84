#include "scratch.hpp"

#include <atomic>
#include <cstring>

#include "../../platform/memory.hpp"
#include "../no_memory.hpp"

namespace regard {
namespace {

constexpr std::size_t kLine = 64;
// Pieces that are worth a huge page of the system take whole ones: packed blocks that fill most of L2 crowd into
// some of its sets where they lie in small pages that are scattered over memory.
constexpr std::size_t kWorthHugePages = kHugePage / 2;
constexpr std::size_t kMostKept = std::size_t{6} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;  // each call ends at the end of what it asked for
#elif defined(__has_feature)
constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
constexpr bool kKeeps = true;
#endif

// Pieces that wait for a call. Each begins with a line that holds its size.
std::atomic<char*> waiting[4];

std::size_t& size_of(char* piece) { return *reinterpret_cast<std::size_t*>(piece); }

char* take_waiting(std::size_t size) {
  for (std::atomic<char*>& place : waiting) {
    char* const piece = place.exchange(nullptr, std::memory_order_acquire);
    if (!piece) continue;
    if (size_of(piece) >= size) return piece;
    free_aligned(piece);
  }
  return nullptr;
}

char* allocate(std::size_t size) {
  const bool is_large = size >= kWorthHugePages && size <= kMostKept;
  const std::size_t unit = is_large ? kHugePage : kLine;
  const std::size_t whole = (size + unit - 1) / unit * unit;
  if (whole < size) return nullptr;
  char* const piece = is_large ? allocate_huge(whole) : allocate_aligned(unit, whole);
  if (piece) size_of(piece) = whole;
  return piece;
}

void give_back(char* piece) {
  if (kKeeps && size_of(piece) <= kMostKept) {
    for (std::atomic<char*>& place : waiting) {
      char* none = nullptr;
      if (place.compare_exchange_strong(none, piece, std::memory_order_release)) return;
    }
  }
  free_aligned(piece);
}

}  // namespace

Scratch::Scratch(int threads, std::int64_t bytes) : stride_((bytes + 63) / 64 * 64), memory_(nullptr) {
  std::size_t size = 0;
  bool is_beyond = __builtin_mul_overflow(stride_, threads > 0 ? threads : 1, &size);
  is_beyond |= __builtin_add_overflow(size, kLine, &size);
  char* piece = nullptr;
  if (!is_beyond) piece = take_waiting(size);
  if (!is_beyond && !piece) piece = allocate(size);
  if (!piece) throw NoMemory(stride_, "workspace for each thread");
  memory_ = piece + kLine;
}

Scratch::~Scratch() { give_back(memory_ - kLine); }

}  // namespace regard
