#include "memory.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "errors.hpp"

namespace regard::cuda {
namespace {

namespace py = pybind11;

// The amount of freed memory that the process keeps for the next call. The rest returns to the
// device when a stream is synchronized. A device's default pool returns all of it.
constexpr std::uint64_t kKeptBytes = std::uint64_t{64} << 20;

// A separate pool for each device, since the default pool belongs to the whole process.
cudaMemPool_t pool_of(int device) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  const std::lock_guard lock(mutex);
  const auto found = pools.find(device);
  if (found != pools.end()) return found->second;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  std::uint64_t kept = kKeptBytes;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), "cudaMemPoolSetAttribute");
  pools.emplace(device, pool);
  return pool;
}

// Waits for an event without the GIL, which is acquired briefly from time to time to run signal
// handlers.
void wait_for(cudaEvent_t event) {
  using std::chrono::steady_clock;
  auto handled = steady_clock::now();
  auto pause = std::chrono::microseconds(5);
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state != cudaErrorNotReady) return check(state, "cudaEventQuery");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(500));
    if (steady_clock::now() - handled < std::chrono::milliseconds(50)) continue;
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    handled = steady_clock::now();
  }
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Two pinned host blocks: one is filled or emptied while the device copies the other.
class Staging {
 public:
  static constexpr std::size_t kBlock = std::size_t{4} << 20;

  Staging() {
    check(cudaHostAlloc(&memory_, 2 * kBlock, cudaHostAllocPortable), "cudaHostAlloc", 2 * kBlock);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { cudaFreeHost(memory_); }

  char* block(std::size_t number) { return static_cast<char*>(memory_) + number % 2 * kBlock; }
  Event& copied(std::size_t number) { return events_[number % 2]; }

 private:
  void* memory_ = nullptr;
  Event events_[2];
};

// Borrows a Staging that no other thread uses, with its blocks free, and returns it.
class StagingLoan {
 public:
  explicit StagingLoan(int device) : free_(free_of(device)) {
    {
      const std::lock_guard lock(mutex());
      if (!free_.empty()) {
        staging_ = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!staging_) staging_ = std::make_unique<Staging>();
  }
  ~StagingLoan() {
    const std::lock_guard lock(mutex());
    free_.push_back(std::move(staging_));
  }
  Staging* operator->() { return staging_.get(); }

 private:
  using Free = std::vector<std::unique_ptr<Staging>>;

  static std::mutex& mutex() {
    static std::mutex the_mutex;
    return the_mutex;
  }
  // Events belong to a device. Never destroyed: the runtime may end before the process does.
  static Free& free_of(int device) {
    static auto* const all = new std::map<int, Free>;
    const std::lock_guard lock(mutex());
    return (*all)[device];
  }

  Free& free_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace

void* allocate(std::size_t bytes, int device, cudaStream_t stream) {
  void* data = nullptr;
  check(cudaMallocFromPoolAsync(&data, bytes, pool_of(device), stream), "cudaMallocFromPoolAsync", bytes);
  return data;
}

Buffer::Buffer(std::size_t bytes, int device, std::uintptr_t stream) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  const DeviceGuard guard(device);
  data_ = allocate(bytes, device, stream_of(stream));
  try {
    used_by(stream);
  } catch (...) {
    cudaFreeAsync(data_, stream_of(stream));
    throw;
  }
}

// Errors are ignored: a destructor cannot report them, and the runtime may already be gone when the
// process ends.
Buffer::~Buffer() {
  if (!data_) return;
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  if (is_exported_) cudaDeviceSynchronize();
  if (used_) {
    cudaStreamWaitEvent(stream_of(0), used_, 0);
    cudaEventDestroy(used_);
  }
  cudaFreeAsync(data_, stream_of(0));
  cudaSetDevice(before);
  cudaGetLastError();
}

void Buffer::used_by(std::uintptr_t stream) {
  if (!data_) return;
  const DeviceGuard guard(device_);
  // An event that is recorded again covers only the later work, so order the stream after the
  // earlier work first.
  order(stream);
  if (!used_) check(cudaEventCreateWithFlags(&used_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  check(cudaEventRecord(used_, stream_of(stream)), "cudaEventRecord");
}

void Buffer::order(std::uintptr_t stream) {
  if (!used_) return;
  const DeviceGuard guard(device_);
  check(cudaStreamWaitEvent(stream_of(stream), used_, 0), "cudaStreamWaitEvent");
}

void order_streams(int device, std::uintptr_t before, std::uintptr_t after) {
  const DeviceGuard guard(device);
  Event done;
  done.record(stream_of(before));
  check(cudaStreamWaitEvent(stream_of(after), done.get(), 0), "cudaStreamWaitEvent");
}

void copy_to_device(std::uintptr_t to, const void* from, std::size_t bytes, int device, std::uintptr_t stream) {
  const py::gil_scoped_release released;
  const DeviceGuard guard(device);
  StagingLoan staging(device);
  for (std::size_t at = 0, number = 0; at < bytes; at += Staging::kBlock, ++number) {
    const std::size_t count = std::min(Staging::kBlock, bytes - at);
    wait_for(staging->copied(number).get());
    std::memcpy(staging->block(number), static_cast<const char*>(from) + at, count);
    check(cudaMemcpyAsync(reinterpret_cast<char*>(to) + at, staging->block(number), count,
                          cudaMemcpyHostToDevice, stream_of(stream)),
          "cudaMemcpyAsync");
    staging->copied(number).record(stream_of(stream));
  }
}

void copy_to_host(void* to, std::uintptr_t from, std::size_t bytes, int device, std::uintptr_t stream) {
  const py::gil_scoped_release released;
  const DeviceGuard guard(device);
  StagingLoan staging(device);
  const std::size_t blocks = (bytes + Staging::kBlock - 1) / Staging::kBlock;
  const auto size_of = [&](std::size_t number) {
    return std::min(Staging::kBlock, bytes - number * Staging::kBlock);
  };
  for (std::size_t number = 0; number <= blocks; ++number) {
    if (number < blocks) {
      wait_for(staging->copied(number).get());
      check(cudaMemcpyAsync(staging->block(number),
                            reinterpret_cast<const char*>(from) + number * Staging::kBlock, size_of(number),
                            cudaMemcpyDeviceToHost, stream_of(stream)),
            "cudaMemcpyAsync");
      staging->copied(number).record(stream_of(stream));
    }
    if (number > 0) {
      wait_for(staging->copied(number - 1).get());
      std::memcpy(static_cast<char*>(to) + (number - 1) * Staging::kBlock, staging->block(number - 1),
                  size_of(number - 1));
    }
  }
}

void synchronize(int device, std::uintptr_t stream) {
  const py::gil_scoped_release released;
  const DeviceGuard guard(device);
  Event done;
  done.record(stream_of(stream));
  wait_for(done.get());
}

}  // namespace regard::cuda
