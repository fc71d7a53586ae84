#include "threads.hpp"

#if defined(_WIN32)
#include <exception>
#include <thread>
#else
#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <new>
#endif

namespace regard {

#if defined(_WIN32)

bool start_thread(void (*run)(void* argument), void* argument) {
  try {
    std::thread(run, argument).detach();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

#else

namespace {

constexpr std::size_t kStack = std::size_t{1} << 20;

struct Start {
  void (*run)(void*);
  void* argument;
};

}  // namespace

bool start_thread(void (*run)(void* argument), void* argument) {
  auto* const start = new (std::nothrow) Start{run, argument};
  if (!start) return false;
  const auto body = [](void* given) -> void* {
    const Start now = *static_cast<Start*>(given);
    delete static_cast<Start*>(given);
    now.run(now.argument);
    return nullptr;
  };
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) {
    delete start;
    return false;
  }
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  std::size_t usual = 0;
  pthread_attr_getstacksize(&attributes, &usual);
  pthread_attr_setstacksize(&attributes, kStack);
  // Signals belong to the threads of the program, except faults, which a thread itself causes.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  pthread_t thread;
  int error = pthread_create(&thread, &attributes, body, start);
  if (error == EINVAL) {  // thread-local variables of other libraries, which are stored in the stack, need more
    pthread_attr_setstacksize(&attributes, usual);
    error = pthread_create(&thread, &attributes, body, start);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) delete start;
  return error == 0;
}

#endif

}  // namespace regard
