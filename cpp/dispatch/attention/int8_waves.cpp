#include "int8_waves.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "../no_memory.hpp"
#include "../split.hpp"

namespace regard {
namespace {

// More keys than fit in any memory. Below this limit, no size in bytes exceeds 64 bits.
constexpr std::int64_t kMostKeys = std::int64_t{1} << 50;

}  // namespace

Int8Waves::Int8Waves(const AttentionProblem& problem, const Kernels& kernels,
                     const AttentionTasks& tasks, int threads) {
  if (problem.kv_len > kMostKeys) throw NoMemory(problem.kv_len, "keys in int8");
  // Batch entries may share keys if they have the same number of them.
  using Identity = std::tuple<const void*, const std::int32_t*, std::int64_t, std::int64_t>;
  std::map<Identity, std::size_t> keys_of_wave;
  std::int64_t used = 0;
  for (std::int64_t index = 0; index < tasks.count(); ++index) {
    const AttentionTask task = tasks.at(index);
    const Identity identity{task.key, task.pages, task.key_begin, task.kv_len};
    auto found = keys_of_wave.find(identity);
    if (found == keys_of_wave.end()) {
      const std::int64_t of_keys = kernels.int8.quantizer.bytes(problem, task.kv_len);
      if (waves.empty() || is_wave_full(used + of_keys, index - waves.back().first_task, threads)) {
        waves.push_back({index, index, keys.size(), keys.size()});
        keys_of_wave.clear();
        used = 0;
      }
      found = keys_of_wave.emplace(identity, keys.size()).first;
      keys.push_back({index, used});
      used += of_keys;
      bytes = std::max(bytes, used);
    }
    keys_of_task.push_back(found->second);
    waves.back().end_task = index + 1;
    waves.back().end_keys = keys.size();
  }
}

}  // namespace regard
