"""Test the times on a GPU, with a clock and engines of the tests: which are measured, and what is
printed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks/cuda_times.py"


@pytest.fixture(scope="module")
def cuda_times():
    spec = importlib.util.spec_from_file_location("cuda_times", SCRIPT)
    module = sys.modules["cuda_times"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["cuda_times"]


def test_cases(cuda_times):
    names = [case.name for case in cuda_times.cases()]
    assert len(set(names)) == len(names) == 26
    assert "16x32x1024x64" in names
    assert "1x16x16384x128 causal" in names
    assert "decode 16x32/8x4096x128" in names


def test_rates(cuda_times):
    whole = cuda_times.Case(2, 4, 4, 1000, 1000, 64)
    causal = cuda_times.Case(2, 4, 4, 1000, 1000, 64, is_causal=True)
    assert whole.flops == 2 * causal.flops == 2 * 2 * 4 * 1000 * 1000 * (64 + 64)
    assert whole.rate(1e-3) == "2.0 TFLOP/s"
    decode = cuda_times.Case(3, 8, 2, 1, 1000, 64)
    assert decode.bytes == 2 * 2 * (3 * 2 * 1000 * 64)
    assert decode.rate(1e-6) == "1536 GB/s"


def test_engines_take_turns_and_medians_are_those_of_a_call(cuda_times):
    """One engine takes 1 ms per call and is disturbed once; the other takes 40 ms."""
    order = []

    def timed(call, count):
        order.append(call())
        disturbed = call() == "fast" and order.count("fast") == 3
        return count * {"fast": 0.001, "slow": 0.040}[call()] + disturbed

    calls = {"regard": lambda: "fast", "other": lambda: "slow"}
    times = cuda_times.medians(calls, timed)
    assert times == pytest.approx({"regard": 0.001, "other": 0.040})
    assert order == ["fast", "slow"] * (1 + cuda_times.ROUNDS)


def test_table(cuda_times):
    full, decode = cuda_times.Case(1, 2, 2, 8, 8, 4), cuda_times.Case(1, 2, 1, 1, 8, 4)
    rows = [
        (full, {"regard": 2e-9, "A": 3e-9, "B": 1e-9}, {"regard": 1e-3, "A": 2.0, "B": 3.0}),
        (decode, {"regard": 2e-9}, {"regard": 0.25}),
    ]
    assert cuda_times.table(rows).splitlines() == [
        "| case | regard | A | B | against the best | error of regard |",
        "|---|---|---|---|---|---|",
        "| 1x2x8x4 | 1.0 TFLOP/s | 0.7 TFLOP/s | 2.0 TFLOP/s | 0.50x | 1.0e-03 |",
        "| decode 1x2/1x8x4 | 64 GB/s | - | - | - | 2.5e-01 |",
    ]
    alone = cuda_times.table(rows[1:]).splitlines()
    assert alone[0] == "| case | regard | error of regard |"


def test_without_pytorch_or_a_device_it_says_so():
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, check=False, timeout=120
    )
    if "| case |" in done.stdout:
        pytest.skip("PyTorch has a CUDA device here")
    assert done.returncode == 0, done.stderr
    assert "nothing is timed" in done.stdout
