"""Test each emulated instruction against its table, and what nvcc makes of the kernels."""

import shutil
import subprocess
import sys

import pytest

import cuda_emulation


@pytest.mark.parametrize(
    "sanitizer",
    ["none", *(pytest.param(s, marks=pytest.mark.exhaustive) for s in ("address", "thread"))],
)
def test_instructions_follow_their_tables(sanitizer):
    program = cuda_emulation.build(sanitizer, kernels=False, main="test_instructions.cu")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all instructions agree with their tables\n"


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_registers_and_instructions_of_the_compiled_kernels():
    check = cuda_emulation.TESTS / "check_build.py"
    done = subprocess.run([sys.executable, check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
