#include "gil.hpp"

#include <cxxabi.h>
#include <unistd.h>

namespace regard {
namespace {

template <class Acquire>
void acquire_or_sleep(Acquire acquire) noexcept {
#if defined(__GLIBCXX__)
  try {
    acquire();
  } catch (abi::__forced_unwind&) {
    while (true) pause();
  }
#else
  acquire();
#endif
}

}  // namespace

GilReleased::~GilReleased() {
  acquire_or_sleep([this] { PyEval_RestoreThread(state_); });
}

bool python_wants_stop(void*) {
  PyGILState_STATE state{};
  acquire_or_sleep([&] { state = PyGILState_Ensure(); });
  const bool wants_stop = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return wants_stop;
}

}  // namespace regard
