// Threads that take the next task whenever they are done with one.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

template <class Task>
inline void in_parallel(int tasks, int threads, Task task) {
  std::atomic<int> next{0};
  const auto worker = [&] {
    for (int i; (i = next++) < tasks;) task(i);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(worker);
  worker();
  for (std::thread& other : others) other.join();
}
