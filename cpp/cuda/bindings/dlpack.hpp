// Imports arrays of other libraries through DLPack, in both of its forms (before version 1, and
// since), and exports our own arrays. The structures follow the standard:
// https://dmlc.github.io/dlpack/latest
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace regard::cuda {

namespace py = pybind11;

struct DLTensor;

// The tensor of a capsule. The memory returns to the producer when this is destroyed.
class ImportedTensor {
 public:
  // Takes the tensor out of a capsule. Throws TypeError for another object, and ValueError for a
  // used capsule or an unknown version.
  explicit ImportedTensor(py::capsule capsule);
  ImportedTensor(const ImportedTensor&) = delete;
  ImportedTensor& operator=(const ImportedTensor&) = delete;
  ~ImportedTensor();

  std::uintptr_t address() const;
  py::tuple device() const;        // type and number
  py::tuple element() const;       // code, bits, lanes
  py::tuple shape() const;
  py::object strides() const;      // in elements; None if contiguous
  bool is_read_only() const { return is_read_only_; }

 private:
  const DLTensor& tensor() const;

  void* managed_ = nullptr;
  bool is_versioned_ = false;
  bool is_read_only_ = false;
};

// A capsule with device memory that `owner` keeps alive.
py::capsule export_tensor(py::object owner, std::uintptr_t address, std::int32_t device, std::uint8_t code,
                          std::uint8_t bits, const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides, bool is_versioned);

}  // namespace regard::cuda
