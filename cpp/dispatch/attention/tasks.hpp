// Divides a problem into tasks. A task consists of some rows of one kv head, computed by one
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "../../kernels/kernel_table.hpp"
#include "../../problem/attention.hpp"
#include "../batch_index.hpp"

namespace regard {

// The location of a batch entry's kv head in the arrays.
class HeadPlace {
 public:
  HeadPlace(const AttentionProblem& problem, std::int64_t entry, std::int64_t kv_head);

  // The first query of the group's first head, and the first key. Null stays null.
  void* of_queries(const Operand& operand) const { return at(operand, head_, first_query_); }
  void* of_keys(const Operand& operand) const { return at(operand, kv_head_, first_key_); }
  // For rows in pages: only the head.
  void* of_head(const Operand& operand) const { return at(operand, kv_head_, 0); }
  // The first row of the group's first head.
  void* of_first_head(const Operand& operand) const { return at(operand, head_, 0); }

  // The numbers of the group's heads.
  const double* of_heads(const PerHead& numbers) const {
    return numbers.data ? batch_.in(numbers) + head_ * numbers.head_stride : nullptr;
  }

  const BatchIndex& batch() const { return batch_; }
  std::int64_t head() const { return head_; }
  std::int64_t first_query() const { return first_query_; }

 private:
  void* at(const Operand& operand, std::int64_t head, std::int64_t row) const {
    return advance(batch_.in(operand), operand, head * operand.head_stride + row * operand.row_stride);
  }

  BatchIndex batch_;
  std::int64_t kv_head_;
  std::int64_t head_;  // the group's first
  std::int64_t first_query_;
  std::int64_t first_key_;
};

// Number of keys in an entry's arrays.
std::int64_t keys_of(const AttentionProblem& problem, std::int64_t entry);

// The rows of one kv head in a batch entry.
std::int64_t rows_of(const AttentionProblem& problem, std::int64_t entry);

// Some of these rows.
AttentionTask task_of(const AttentionProblem& problem, std::int64_t entry, std::int64_t kv_head,
                      std::int64_t row_begin, std::int64_t row_end);

class AttentionTasks {
 public:
  AttentionTasks(const AttentionProblem& problem, const Kernels& kernels, int threads);

  std::int64_t count() const { return count_; }
  std::int64_t most_rows() const { return most_rows_; }  // in one task
  AttentionTask at(std::int64_t index) const;
  // As at(), over the count() / kv_heads tasks of the batch entries' first kv heads.
  AttentionTask at_first_head(std::int64_t index) const;

 private:
  struct Place {
    std::int64_t entry;
    std::int64_t within;  // the entry's tasks
  };
  Place place_of(std::int64_t index) const;
  AttentionTask task_at(std::int64_t entry, std::int64_t kv_head, std::int64_t part) const;

  // The number of parts of `rows` rows, as required by the limit. Parts have nearly equal numbers
  // of strips.
  std::int64_t parts_of(std::int64_t rows) const;
  std::int64_t begin_of_part(std::int64_t rows, std::int64_t parts, std::int64_t part) const;
  void count_rows(std::int64_t rows);  // of a head, for most_rows
  double cost_of(std::int64_t entry, std::int64_t rows) const;  // of one task of an entry, relative to other tasks

  const AttentionProblem& problem_;
  std::int64_t row_unit_;
  std::int64_t rows_limit_;
  std::int64_t most_rows_ = 0;
  std::int64_t count_ = 0;
  // Ragged: batch entries in order of decreasing task size, so that no thread begins a large task
  // when the others are about to finish; and the first task of each entry. Empty if all entries
  // have the same number of tasks.
  std::vector<std::int64_t> order_;
  std::vector<std::int64_t> first_task_;
};

}  // namespace regard
