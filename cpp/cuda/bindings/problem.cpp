#include "problem.hpp"

#include <cstdint>
#include <string>
#include <tuple>

#include "../attention.hpp"
#include "errors.hpp"
#include "memory.hpp"

namespace regard::cuda {
namespace {

namespace py = pybind11;

// Address, and strides of batch, heads, rows and columns.
using TensorParts = std::tuple<std::uintptr_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
// Address, and the number for every entry if the address is 0.
using EntryParts = std::tuple<std::uintptr_t, std::int32_t>;

Tensor tensor_of(const TensorParts& parts) {
  const auto& [address, batch, head, row, column] = parts;
  return {reinterpret_cast<void*>(address), batch, head, row, column};
}

PerEntry per_entry_of(const EntryParts& parts) {
  return {reinterpret_cast<const std::int32_t*>(std::get<0>(parts)), std::get<1>(parts)};
}

Element element_of(const std::string& name) {
  if (name == "float16") return Element::float16;
  if (name == "bfloat16") return Element::bfloat16;
  if (name == "float32") return Element::float32;
  throw py::value_error("an element must be float16, bfloat16 or float32, got " + name);
}

using Class = py::class_<AttentionProblem>;

// A field that Python writes and never reads.
template <class Given, class Set>
void add_field(Class& type, const char* name, Set set) {
  type.def_property(name, nullptr, py::cpp_function([set](AttentionProblem& p, const Given& given) { set(p, given); },
                                                     py::is_method(type)));
}

template <auto kField>
void add_tensor(Class& type, const char* name) {
  add_field<TensorParts>(type, name, [](auto& p, const auto& parts) { p.*kField = tensor_of(parts); });
}

template <auto kField>
void add_per_entry(Class& type, const char* name) {
  add_field<EntryParts>(type, name, [](auto& p, const auto& parts) { p.*kField = per_entry_of(parts); });
}

template <auto kField>
void add_element(Class& type, const char* name) {
  add_field<std::string>(type, name, [](auto& p, const auto& named) { p.*kField = element_of(named); });
}

template <class Number, auto kField>
void add_pointer(Class& type, const char* name) {
  add_field<std::uintptr_t>(
      type, name, [](auto& p, std::uintptr_t address) { p.*kField = reinterpret_cast<const Number*>(address); });
}

// Device memory for one launch.
class Workspace {
 public:
  Workspace(std::size_t bytes, int device, cudaStream_t stream) : stream_(stream) {
    if (bytes) data_ = allocate(bytes, device, stream);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (data_) cudaFreeAsync(data_, stream_);
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

void launch(const AttentionProblem& problem, int device, std::uintptr_t stream) {
  const AttentionProblem own = problem;  // the GIL does not protect it any more
  const py::gil_scoped_release released;
  const DeviceGuard guard(device);
  const Workspace workspace(workspace_bytes(own), device, stream_of(stream));
  check(attention(own, workspace.data(), stream_of(stream)), "the launch of a kernel");
}

}  // namespace

void add_problem(py::module_& module) {
  Class type(module, "Problem", py::module_local());
  type.def(py::init<>());
  type.def_readwrite("batch", &AttentionProblem::batch)
      .def_readwrite("heads", &AttentionProblem::heads)
      .def_readwrite("kv_heads", &AttentionProblem::kv_heads)
      .def_readwrite("q_len", &AttentionProblem::q_len)
      .def_readwrite("kv_len", &AttentionProblem::kv_len)
      .def_readwrite("head_dim", &AttentionProblem::head_dim)
      .def_readwrite("value_dim", &AttentionProblem::value_dim)
      .def_readwrite("window_left", &AttentionProblem::window_left)
      .def_readwrite("window_right", &AttentionProblem::window_right)
      .def_readwrite("query_offset_is_end", &AttentionProblem::query_offset_is_end)
      .def_readwrite("scale", &AttentionProblem::scale)
      .def_readwrite("softcap", &AttentionProblem::softcap)
      .def_readwrite("alibi_batch_stride", &AttentionProblem::alibi_batch_stride);
  add_element<&AttentionProblem::element>(type, "element");
  add_element<&AttentionProblem::bias_element>(type, "bias_element");
  add_pointer<std::int32_t, &AttentionProblem::query_starts>(type, "query_starts");
  add_pointer<std::int32_t, &AttentionProblem::key_starts>(type, "key_starts");
  add_pointer<float, &AttentionProblem::alibi_slopes>(type, "alibi_slopes");
  add_pointer<float, &AttentionProblem::sinks>(type, "sinks");
  add_tensor<&AttentionProblem::query>(type, "query");
  add_tensor<&AttentionProblem::key>(type, "key");
  add_tensor<&AttentionProblem::value>(type, "value");
  add_tensor<&AttentionProblem::output>(type, "output");
  add_tensor<&AttentionProblem::lse>(type, "lse");
  add_tensor<&AttentionProblem::mask>(type, "mask");
  add_tensor<&AttentionProblem::bias>(type, "bias");
  add_per_entry<&AttentionProblem::query_offset>(type, "query_offset");
  add_per_entry<&AttentionProblem::key_lengths>(type, "key_lengths");
  add_per_entry<&AttentionProblem::left_padding>(type, "left_padding");
  type.def("launch", &launch, py::arg("device"), py::arg("stream"));
}

}  // namespace regard::cuda
