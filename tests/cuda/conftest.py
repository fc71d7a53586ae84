"""Start one process for each program, for all tests of a worker."""

import shutil
import zlib

import numpy as np
import pytest

import cuda_emulation


@pytest.fixture(scope="session")
def emulation():
    runner = cuda_emulation.Runner(cuda_emulation.build())
    yield runner
    runner.close()


@pytest.fixture
def random(request):
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="session", autouse=True)
def _compiler():
    if not shutil.which("g++"):
        pytest.skip("g++, which builds the emulation, is not installed")
