// The CUDA runtime on the CPU, for tests of the host side. It is stricter than a GPU: no work runs
// before something waits for it, only events order streams (also the legacy default stream), copies
// may access only pinned and live memory, and new memory is NaN in every type.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "control.hpp"

struct CUstream_st {};  // a stream is its number
struct CUmemPoolHandle_st {
  int device;
};
struct CUevent_st {
  std::uintptr_t stream = 0;
  std::uint64_t ticket = 0;  // the amount of work that the stream had been given
  int queries = 0;
};

namespace regard::cuda::emulated {
namespace {

struct Stream {
  std::deque<std::function<void()>> work;
  std::uint64_t done = 0;
  std::uint64_t given() const { return done + work.size(); }
};

struct Block {
  std::size_t bytes;
  int device;  // -1 for pinned host memory
};

struct Failure {
  int calls;
  cudaError_t error;
};

struct Machine {
  std::recursive_mutex mutex;
  int devices = 1, major = 8, minor = 0, driver = 13000;
  int current = 0;
  cudaError_t last = cudaSuccess;
  std::map<std::uintptr_t, Stream> streams;
  std::map<std::uintptr_t, Block> blocks;
  std::map<std::string, Failure> failures;
  int events = 0, launches = 0;
  bool is_stalled = false;
};

// Never destroyed: arrays may be freed at the process's end.
Machine& machine() {
  static auto* const the_machine = new Machine;
  return *the_machine;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what.c_str());
  std::abort();
}

std::uintptr_t number_of(cudaStream_t stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  return number ? number : 1;  // both are the legacy default stream
}

void run(std::uintptr_t number, std::uint64_t ticket) {
  Stream& stream = machine().streams[number];
  while (stream.done < ticket) {
    const auto work = std::move(stream.work.front());
    stream.work.pop_front();
    ++stream.done;
    work();
  }
}

void run_all() {
  for (auto& [number, stream] : machine().streams) run(number, stream.given());
}

// The block that contains an address, or null.
const Block* find(const void* address, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto above = machine().blocks.upper_bound(at);
  if (above == machine().blocks.begin()) return nullptr;
  const auto& [begin, block] = *--above;
  return at + bytes <= begin + block.bytes ? &block : nullptr;
}

cudaError_t result(const char* call) {
  Machine& m = machine();
  const auto found = m.failures.find(call);
  if (found == m.failures.end() || found->second.calls-- > 0) return cudaSuccess;
  m.last = found->second.error;
  m.failures.erase(found);
  return m.last;
}

void add_block(void** address, std::size_t bytes, int device) {
  *address = std::malloc(bytes);
  std::memset(*address, 0xFF, bytes);
  machine().blocks[reinterpret_cast<std::uintptr_t>(*address)] = {bytes, device};
}

void remove_block(void* address) {
  const auto found = machine().blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == machine().blocks.end()) fail("memory is freed twice, or was not allocated");
  std::memset(address, 0xFF, found->second.bytes);
  machine().blocks.erase(found);
  std::free(address);
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(machine().mutex);
  machine().streams[number_of(stream)].work.push_back(std::move(work));
}

cudaError_t enqueue_launch(cudaStream_t stream, std::function<cudaError_t()> kernel) {
  const std::lock_guard lock(machine().mutex);
  if (const cudaError_t error = result("launch"); error != cudaSuccess) return error;
  ++machine().launches;
  enqueue(stream, [kernel = std::move(kernel)] {
    if (kernel() != cudaSuccess) fail("a kernel cannot be launched");
  });
  return cudaSuccess;
}

}  // namespace regard::cuda::emulated

using namespace regard::cuda::emulated;

// Each call holds the lock of the only machine, and fails if a test has requested it.
#define REGARD_CALL()                                         \
  const std::lock_guard lock(machine().mutex);                \
  if (machine().driver == 0) return cudaErrorInsufficientDriver; \
  if (const cudaError_t error = result(__func__); error != cudaSuccess) return error

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(machine().mutex);
  return std::exchange(machine().last, cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  const std::lock_guard lock(machine().mutex);
  *version = machine().driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(machine().mutex);
  if (machine().driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  *count = machine().devices;
  return machine().devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  REGARD_CALL();
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  std::snprintf(properties->name, sizeof properties->name, "Emulated Device %d", device);
  properties->totalGlobalMem = std::size_t{1} << 30;
  properties->major = machine().major;
  properties->minor = machine().minor;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  REGARD_CALL();
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? machine().major : machine().minor;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  REGARD_CALL();
  *device = machine().current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  REGARD_CALL();
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  machine().current = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  REGARD_CALL();
  run_all();
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  REGARD_CALL();
  const Block* const block = find(address, 1);
  *attributes = {};
  if (!block) return cudaSuccess;
  attributes->type = block->device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = block->device < 0 ? 0 : block->device;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  REGARD_CALL();
  *pool = new CUmemPoolHandle_st{properties->location.id};
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  REGARD_CALL();
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** address, std::size_t bytes, cudaMemPool_t pool, cudaStream_t) {
  REGARD_CALL();
  add_block(address, bytes, pool->device);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  REGARD_CALL();
  enqueue(stream, [address] { remove_block(address); });
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  REGARD_CALL();
  add_block(address, bytes, -1);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  REGARD_CALL();
  run_all();
  remove_block(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  REGARD_CALL();
  enqueue(stream, [=] {
    const bool goes_up = kind == cudaMemcpyHostToDevice;
    const Block *const host = find(goes_up ? from : to, bytes), *const device = find(goes_up ? to : from, bytes);
    if (!host || host->device >= 0) fail("a copy accesses host memory that is not pinned");
    if (!device || device->device < 0) fail("a copy accesses memory that does not belong to the device");
    std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  REGARD_CALL();
  *event = new CUevent_st;
  ++machine().events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  delete event;
  --machine().events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  REGARD_CALL();
  *event = {number_of(stream), machine().streams[number_of(stream)].given(), 0};
  return cudaSuccess;
}

// Not ready at first, as on a device that works while the host does.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  REGARD_CALL();
  if (machine().streams[event->stream].done >= event->ticket) return cudaSuccess;
  if (machine().is_stalled || event->queries++ < 2) return cudaErrorNotReady;
  run(event->stream, event->ticket);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  REGARD_CALL();
  enqueue(stream, [number = event->stream, ticket = event->ticket] { run(number, ticket); });
  return cudaSuccess;
}

void emulated_cuda_machine(int devices, int major, int minor, int driver) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  m.devices = devices, m.major = major, m.minor = minor, m.driver = driver;
}

void emulated_cuda_fail(const char* name, int calls, int error) {
  const std::lock_guard lock(machine().mutex);
  machine().failures[name] = {calls, static_cast<cudaError_t>(error)};
}

void emulated_cuda_stall(bool is_stalled) {
  const std::lock_guard lock(machine().mutex);
  machine().is_stalled = is_stalled;
}

std::size_t emulated_cuda_device_bytes() {
  const std::lock_guard lock(machine().mutex);
  run_all();
  std::size_t bytes = 0;
  for (const auto& [begin, block] : machine().blocks) bytes += block.device < 0 ? 0 : block.bytes;
  return bytes;
}

int emulated_cuda_events() {
  const std::lock_guard lock(machine().mutex);
  return machine().events;
}

int emulated_cuda_launches() {
  const std::lock_guard lock(machine().mutex);
  return machine().launches;
}
