#include "../compute.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "../no_memory.hpp"
#include "../split.hpp"
#include "../targets.hpp"
#include "../threads/scratch.hpp"
#include "plan.hpp"

namespace regard {
namespace {

// The kv heads of a problem's batch entries, one after another: each owns the gradients of its keys.
class BackwardHeads {
 public:
  explicit BackwardHeads(const BackwardProblem& problem) : problem_(problem) {}

  const BackwardProblem& problem() const { return problem_; }
  std::int64_t count() const { return problem_.forward.batch.count * problem_.forward.kv_heads; }

  // All rows of a head.
  BackwardTask at(std::int64_t index) const {
    const AttentionProblem& forward = problem_.forward;
    const std::int64_t entry = index / forward.kv_heads, kv_head = index % forward.kv_heads;
    const HeadPlace place(forward, entry, kv_head);
    BackwardTask task{};
    task.forward = task_of(forward, entry, kv_head, 0, rows_of(forward, entry));
    task.grad_output = place.of_queries(problem_.grad_output);
    task.grad_lse = place.of_queries(problem_.grad_lse);
    task.grad_query = place.of_queries(problem_.grad_query);
    task.grad_key = place.of_keys(problem_.grad_key);
    task.grad_value = place.of_keys(problem_.grad_value);
    task.grad_bias = place.of_queries(problem_.grad_bias);
    task.slope_terms = place.of_queries(problem_.slope_terms);
    task.deltas = place.of_queries(problem_.deltas);
    task.key_rows = keys_of(forward, entry);
    return task;
  }

 private:
  const BackwardProblem& problem_;
};

// Most elements in the gradients of all queries. Beyond this, the sizes of partials in bytes might
// not fit in 64 bits.
constexpr double kMostPartialElements = 1e15;
// One task sums the partials of this many bands.
constexpr std::int64_t kBandsPerSum = 4;

// Chunks are handed out head by head, so that threads share a head's queries. If each thread has
// fewer chunks than this, the first chunk of every head comes before the second chunks: it is the
// heaviest when attention is causal.
constexpr std::int64_t kManyChunksPerThread = 16;

// Chunks of consecutive heads, whose partials share memory.
struct BackwardChunk {
  std::int64_t head;
  KeyInterval keys;
  std::int64_t partial;  // offset in the wave's memory; -1 if the head has one chunk
  std::int64_t terms;    // of distances, likewise; -1 if they are not requested
};
struct Sum {
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t partial;
  std::int64_t partial_bytes;
};
// The terms that a chunk adds to the gradient of distance_bias, and their offset in the wave's
// memory.
struct DistanceTerms {
  std::int64_t head;
  std::int64_t place;
};
struct BackwardWave {
  std::vector<BackwardChunk> chunks;
  std::vector<Sum> sums;
  std::vector<DistanceTerms> terms;  // chunk by chunk, in the order of addition
  std::int64_t bytes = 0;
};

// Size of one chunk's terms: a table for each head of the group.
std::int64_t distance_bytes(const BackwardProblem& problem) {
  const AttentionProblem& forward = problem.forward;
  if (!problem.grad_distance_bias.data || forward.heads == 0) return 0;
  return forward.heads / forward.kv_heads * (2 * forward.distances - 1) * static_cast<std::int64_t>(sizeof(double));
}

// A wave ends when it is full or reaches `most_bytes`.
std::vector<BackwardWave> waves_of(const BackwardHeads& heads, const BackwardKernels& kernels, std::int64_t sum_rows,
                           int threads, std::int64_t most_bytes = INT64_MAX) {
  const BackwardProblem& problem = heads.problem();
  const std::int64_t piece = kernels.piece_keys(problem);
  const bool wants_queries = problem.grad_query.data || problem.slope_terms.data;
  const std::int64_t terms_bytes = distance_bytes(problem);
  if (!wants_queries && terms_bytes == 0 && !problem.grad_key.data && !problem.grad_value.data) return {};
  // Rows may be broadcast, so there may be more of them than memory can hold.
  const double most_elements = static_cast<double>(problem.forward.q_len) *
                               static_cast<double>(problem.forward.heads) *
                               static_cast<double>(problem.forward.head_dim);
  if (most_elements > kMostPartialElements) throw NoMemory(INT64_MAX, "partial gradients");
  std::vector<BackwardWave> waves(1);
  double all_bytes = 0;
  for (std::int64_t head = 0; head < heads.count(); ++head) {
    const BackwardTask task = heads.at(head);
    const std::int64_t kv_len = task.forward.kv_len, rows = task.forward.row_end;
    const std::int64_t chunk_keys = kernels.chunk_keys(kv_len);
    const std::int64_t chunks = std::max<std::int64_t>(1, ceil_div(kv_len, chunk_keys));
    const bool has_partials = wants_queries && (chunks > 1 || kv_len > piece);
    const std::int64_t partial_bytes = has_partials ? kernels.partial_bytes(problem, rows) : 0;
    const std::int64_t bytes = (partial_bytes + terms_bytes) * chunks;
    const BackwardWave& last = waves.back();
    const auto tasks = static_cast<std::int64_t>(last.chunks.size());
    if (last.bytes > 0 && (last.bytes >= most_bytes || is_wave_full(last.bytes + bytes, tasks, threads)))
      waves.emplace_back();
    BackwardWave& wave = waves.back();
    all_bytes += static_cast<double>(bytes);
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t terms = wave.bytes + partial_bytes * chunks + i * terms_bytes;
      wave.chunks.push_back({head, {i * chunk_keys, std::min(kv_len, (i + 1) * chunk_keys)},
                             has_partials ? wave.bytes + i * partial_bytes : -1, terms_bytes > 0 ? terms : -1});
      if (terms_bytes > 0) wave.terms.push_back({head, terms});
    }
    for (std::int64_t row = 0; has_partials && row < rows; row += sum_rows)
      wave.sums.push_back({head, row, wave.bytes, partial_bytes});
    wave.bytes += bytes;
  }
  // Make waves of nearly equal size: a last wave of a few chunks would leave threads idle.
  if (waves.size() > 1 && most_bytes == INT64_MAX) {
    const double even = std::min(all_bytes / static_cast<double>(waves.size()), 1e18);
    return waves_of(heads, kernels, sum_rows, threads, static_cast<std::int64_t>(even));
  }
  for (BackwardWave& wave : waves)
    if (static_cast<std::int64_t>(wave.chunks.size()) < kManyChunksPerThread * threads)
      std::stable_sort(wave.chunks.begin(), wave.chunks.end(),
                       [](const BackwardChunk& a, const BackwardChunk& b) { return a.keys.begin < b.keys.begin; });
  return waves;
}

void gradients_of_chunk(const BackwardHeads& heads, const BackwardKernels& kernels,
                        const BackwardChunk& chunk, char* memory, std::int64_t interval,
                        Worker& worker, void* workspace) {
  const BackwardProblem& problem = heads.problem();
  BackwardTask task = heads.at(chunk.head);
  const std::int64_t rows = task.forward.row_end;
  if (chunk.partial >= 0) task.partial = memory + chunk.partial;
  if (chunk.terms >= 0) {
    task.distance_terms = reinterpret_cast<double*>(memory + chunk.terms);
    std::fill_n(task.distance_terms, distance_bytes(problem) / static_cast<std::int64_t>(sizeof(double)), 0.0);
  }
  task.chunk = chunk.keys;
  const std::int64_t piece = kernels.piece_keys(problem);
  KeyInterval keys = chunk.keys;
  do {
    const KeyInterval now{keys.begin, std::min(keys.end, keys.begin + piece)};
    kernels.begin(problem, task, now, workspace);
    for (std::int64_t row = 0; row < rows && !worker.should_stop(); row += interval)
      kernels.advance(problem, task, row, std::min(rows, row + interval), workspace);
    kernels.finish(problem, task, workspace);
    keys.begin = now.end;
  } while (keys.begin < keys.end);
  // Clear the gradients of keys that the entry does not have.
  if (chunk.keys.end == task.forward.kv_len) kernels.clear(problem, task, {chunk.keys.end, task.key_rows});
}

// Adds the tables of a wave's chunks to the gradient in order, so that the sums are the same for
// any number of threads.
void add_distance_terms(const BackwardHeads& heads, const BackwardWave& wave, const char* memory) {
  const BackwardProblem& problem = heads.problem();
  const AttentionProblem& forward = problem.forward;
  const Operand& gradient = problem.grad_distance_bias;
  if (wave.terms.empty()) return;
  const std::int64_t group = forward.heads / forward.kv_heads, columns = 2 * forward.distances - 1;
  for (const DistanceTerms& terms : wave.terms) {
    const HeadPlace place(forward, terms.head / forward.kv_heads, terms.head % forward.kv_heads);
    const double* from = reinterpret_cast<const double*>(memory + terms.place);
    for (std::int64_t head = 0; head < group; ++head) {
      double* const to = static_cast<double*>(place.of_first_head(gradient)) + head * gradient.head_stride;
      for (std::int64_t column = 0; column < columns; ++column) to[column * gradient.column_stride] += *from++;
    }
  }
}

// ---- the gradient of a float mask ---------------------------------------------------------------

// Number of parts for each thread, as long as each part has at least kLeastRows rows.
constexpr std::int64_t kPartsPerThread = 4;
constexpr std::int64_t kLeastRows = 192;

// Everything that is added to some elements of the bias, in this order. A single thread adds it, so
// that the order does not depend on the number of threads.
struct BiasPart {
  const std::vector<std::int64_t>* heads;
  KeyInterval keys;
  std::int64_t row_begin;
  std::int64_t row_end;
};

// Adds the gradients of all scores to grad_bias. `interval` is the number of rows that a thread
// computes between two checks of the stop signal.
void add_bias_gradient(const BackwardHeads& heads, const BackwardKernels& kernels, int threads, std::int64_t interval,
                       const Scratch& scratch, const StopSignal& signal) {
  const BackwardProblem& problem = heads.problem();
  if (heads.count() == 0 || problem.forward.heads == 0) return;
  // Heads that add to the same rows of the bias begin at the same element.
  std::map<void*, std::vector<std::int64_t>> sharing;
  for (std::int64_t head = 0; head < heads.count(); ++head) sharing[heads.at(head).grad_bias].push_back(head);

  // Parts are pieces of keys, so that keys and values are loaded into the cache once for all rows.
  // If there are too few pieces, rows are divided too. Axes along which elements are broadcast are
  // not divided.
  const bool divides_keys = problem.grad_bias.column_stride != 0, divides_rows = problem.grad_bias.row_stride != 0;
  // An element that all rows and keys share is summed piece by piece, with pieces that do not
  // depend on L2.
  const std::int64_t piece = divides_keys || divides_rows ? kernels.piece_keys(problem) : kernels.block_keys;
  const std::int64_t kv_len = problem.forward.kv_len;
  const std::int64_t pieces = divides_keys ? ceil_div(kv_len, piece) : 1;
  // Parts consist of whole bands and whole queries: heads of a query may share a row of the bias.
  const std::int64_t whole = std::lcm(kernels.band_rows, problem.forward.heads / problem.forward.kv_heads);
  const std::int64_t wanted =
      ceil_div(kPartsPerThread * threads, static_cast<std::int64_t>(sharing.size()) * std::max<std::int64_t>(pieces, 1));
  std::vector<BiasPart> parts;
  for (const auto& [first, same] : sharing) {
    std::int64_t rows = 0;
    for (const std::int64_t head : same) rows = std::max(rows, heads.at(head).forward.row_end);
    const std::int64_t step = divides_rows ? ceil_div(std::max(ceil_div(rows, wanted), kLeastRows), whole) * whole
                                           : std::max<std::int64_t>(rows, 1);
    for (std::int64_t row = 0; row < rows; row += step)
      for (std::int64_t i = 0; i < pieces; ++i)
        parts.push_back({&same, {i * piece, divides_keys ? (i + 1) * piece : kv_len}, row, row + step});
  }

  parallel_for(threads, static_cast<std::int64_t>(parts.size()), signal, [&](std::int64_t index, Worker& worker) {
    const BiasPart& part = parts[static_cast<std::size_t>(index)];
    for (const std::int64_t head : *part.heads) {
      const BackwardTask task = heads.at(head);
      const std::int64_t row_end = std::min(part.row_end, task.forward.row_end);
      const std::int64_t key_end = std::min(part.keys.end, task.forward.kv_len);
      for (std::int64_t key = part.keys.begin; key < key_end; key += piece) {
        kernels.begin(problem, task, {key, std::min(key_end, key + piece)}, scratch.of(worker));
        for (std::int64_t row = part.row_begin; row < row_end && !worker.should_stop(); row += interval)
          kernels.add_to_bias(problem, task, row, std::min(row_end, row + interval), scratch.of(worker));
      }
    }
  });
}

}  // namespace

void attention_gradients(const BackwardProblem& problem, int threads, const StopSignal& signal) {
  const AttentionProblem& forward = problem.forward;
  const Kernels& all_kernels = kernels_for(active_target(), forward.scalar);
  const BackwardKernels& kernels =
      multiplies_bfloat16(forward, all_kernels) ? all_kernels.bfloat16.backward : all_kernels.backward;
  check_dims(forward);
  const BackwardHeads heads(problem);
  const double work = 2.5 * work_of(forward);
  threads = threads_for(work, threads);
  const std::int64_t unit = kernels.band_rows, sum_rows = kBandsPerSum * unit;
  const std::int64_t piece = kernels.piece_keys(problem);
  const double work_of_unit = 2.5 * static_cast<double>(unit) * static_cast<double>(piece) *
                              static_cast<double>(forward.head_dim + forward.value_dim);
  const std::int64_t interval = interval_of(unit, work_of_unit);
  const std::vector<BackwardWave> waves = waves_of(heads, kernels, sum_rows, threads);
  std::int64_t bytes = 0;
  for (const BackwardWave& wave : waves) bytes = std::max(bytes, wave.bytes);
  const Scratch scratch(threads, kernels.workspace_bytes(problem));
  const Scratch partials(1, bytes);
  char* const memory = static_cast<char*>(partials.at(0));

  for (const BackwardWave& wave : waves) {
    parallel_for(threads, static_cast<std::int64_t>(wave.chunks.size()), signal,
                 [&](std::int64_t index, Worker& worker) {
                   gradients_of_chunk(heads, kernels, wave.chunks[static_cast<std::size_t>(index)], memory, interval,
                                      worker, scratch.of(worker));
                 });
    add_distance_terms(heads, wave, memory);
    parallel_for(threads, static_cast<std::int64_t>(wave.sums.size()), signal,
                 [&](std::int64_t index, Worker& worker) {
                   const Sum& sum = wave.sums[static_cast<std::size_t>(index)];
                   BackwardTask task = heads.at(sum.head);
                   task.forward.row_begin = sum.row_begin;
                   task.forward.row_end = std::min(task.forward.row_end, sum.row_begin + sum_rows);
                   task.partial = memory + sum.partial;
                   kernels.sum_partials(problem, task, sum.partial_bytes, scratch.of(worker));
                 });
  }
  if (problem.deltas.data)
    parallel_for(threads, heads.count(), signal, [&](std::int64_t index, Worker& worker) {
      if (!worker.should_stop()) kernels.write_deltas(problem, heads.at(index), scratch.of(worker));
    });
  if (problem.grad_bias.data) add_bias_gradient(heads, kernels, threads, interval, scratch, signal);
}

}  // namespace regard
