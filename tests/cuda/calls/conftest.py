"""The CUDA module. If the environment names an emulated one (see CONTRIBUTING.md), it runs without
a GPU, with its kernels and the CUDA runtime emulated. Otherwise it is the real one, if a GPU is
present.

Tests that request `machine` are only for the emulation.
"""

import ctypes
import gc
import importlib.util
import os
import sys
import types

import pytest

VARIABLE = "REGARD_EMULATED_CUDA"

# These files have large tables, of which every case would be skipped. The other files tell why.
if VARIABLE not in os.environ and importlib.util.find_spec("regard._cuda") is None:
    collect_ignore = ["test_cuda_attention.py", "test_cuda_batches.py"]


def _modules():
    return [
        name for name in sys.modules if f"{name}.".startswith(("regard.cuda.", "regard._cuda."))
    ]


@pytest.fixture(scope="session")
def _emulated():
    """Replace the real module with the emulated one, and import regard.cuda with it."""
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} does not name an emulated module")
    import regard

    before = {name: sys.modules.pop(name) for name in _modules()}
    attributes = {
        name: vars(regard).pop(name) for name in ("cuda", "_cuda") if name in vars(regard)
    }
    # It has a separate name, since pybind11 returns the module that is already loaded under a name.
    spec = importlib.util.spec_from_file_location("emulated._cuda", path)
    module = sys.modules["regard._cuda"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = ctypes.CDLL(path)
    library.emulated_cuda_device_bytes.restype = ctypes.c_size_t
    import regard.cuda

    yield types.SimpleNamespace(cuda=regard.cuda, module=module, library=library)
    for name in _modules():
        del sys.modules[name]
    for name in ("cuda", "_cuda"):
        vars(regard).pop(name, None)
    sys.modules.update(before)
    vars(regard).update(attributes)


class Machine:
    """The emulated runtime, which a test may change."""

    def __init__(self, emulated):
        self._library = emulated.library
        self.module = emulated.module

    def set(self, *, devices=1, capability=(8, 0), driver=13000):
        self._library.emulated_cuda_machine(devices, *capability, driver)

    def fail(self, name, error, after=0):
        """Let the call of this name fail once, after some calls that do not fail."""
        self._library.emulated_cuda_fail(name.encode(), after, error)

    def stall(self, is_stalled):
        """Let the device do nothing, however often it is asked whether its work is done."""
        self._library.emulated_cuda_stall(is_stalled)

    @property
    def device_bytes(self):
        return self._library.emulated_cuda_device_bytes()

    @property
    def events(self):
        return self._library.emulated_cuda_events()

    @property
    def launches(self):
        return self._library.emulated_cuda_launches()


@pytest.fixture
def machine(_emulated):
    """Yield the emulated machine: one device of compute capability 8.0, with no memory in use at
    the end."""
    machine = Machine(_emulated)
    machine.set()
    gc.collect()
    before = machine.device_bytes
    yield machine
    machine.set()
    gc.collect()
    assert machine.device_bytes == before


@pytest.fixture
def cuda(request):
    """Return `regard.cuda`, on the emulated machine or on a GPU."""
    if os.environ.get(VARIABLE):
        request.getfixturevalue("machine")
        return request.getfixturevalue("_emulated").cuda
    import regard.cuda

    if not regard.cuda.is_available():
        pytest.skip(f"{VARIABLE} names no module, and {regard.cuda.status()}")
    return regard.cuda
