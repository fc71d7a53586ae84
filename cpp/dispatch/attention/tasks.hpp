// How a problem is cut into tasks, each of which is some rows of one kv head that one thread computes.
#pragma once

#include <cstdint>
#include <vector>

#include "../../kernels/kernel_table.hpp"
#include "../../problem/attention.hpp"
#include "../batch_index.hpp"

namespace regard {

// Where a kv head of a batch entry lies in the arrays.
class HeadPlace {
 public:
  HeadPlace(const AttentionProblem& problem, std::int64_t entry, std::int64_t kv_head);

  // The first query of the group's first head, and the first key. Null stays null.
  void* of_queries(const Operand& operand) const { return at(operand, head_, first_query_); }
  void* of_keys(const Operand& operand) const { return at(operand, kv_head_, first_key_); }
  // Of rows in pages, only the head.
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

// How many keys an entry's arrays have.
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
  // Of count() / kv_heads: those of every batch entry's first kv head.
  AttentionTask at_first_head(std::int64_t index) const;

 private:
  struct Place {
    std::int64_t entry;
    std::int64_t within;  // the entry's tasks
  };
  Place place_of(std::int64_t index) const;
  AttentionTask task_at(std::int64_t entry, std::int64_t kv_head, std::int64_t part) const;

  // The parts of `rows` rows: as many as the limit asks for, of nearly equal numbers of strips.
  std::int64_t parts_of(std::int64_t rows) const;
  std::int64_t begin_of_part(std::int64_t rows, std::int64_t parts, std::int64_t part) const;
  void count_rows(std::int64_t rows);  // of a head, for most_rows
  double cost_of(std::int64_t entry, std::int64_t rows) const;  // of one of an entry's tasks, to compare it with others

  const AttentionProblem& problem_;
  std::int64_t row_unit_;
  std::int64_t rows_limit_;
  std::int64_t most_rows_ = 0;
  std::int64_t count_ = 0;
  // Ragged: batch entries, those with the largest tasks first, so that no thread begins one when the others are about
  // to end; and the first task of each. Empty where all entries have as many.
  std::vector<std::int64_t> order_;
  std::vector<std::int64_t> first_task_;
};

}  // namespace regard
