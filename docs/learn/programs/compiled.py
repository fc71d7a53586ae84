"""Compile a step in C++, check it against NumPy and the step before, and measure it.

``python compiled.py lanes.cpp`` needs g++ or clang++, or a compiler that ``CXX`` names.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import measure
import numpy as np
import stable

BEFORE = {
    "loops.cpp": None,
    "registers.cpp": "loops.cpp",
    "lanes.cpp": "registers.cpp",
    "threads.cpp": "lanes.cpp",
    "causal.cpp": "threads.cpp",
}
WITH_THREADS = ("threads.cpp", "causal.cpp")
FLAGS = ["-std=c++17", "-O3", "-march=native", "-Wno-psabi", "-shared", "-fPIC", "-pthread"]

Attention = Callable[[np.ndarray, int], np.ndarray]


def compiler() -> str | None:
    """Return the C++ compiler of this machine, or None."""
    return (
        shutil.which(os.environ.get("CXX", ""))
        or shutil.which("g++")
        or shutil.which("clang++")
    )


def build(name: str, folder: str) -> Attention:
    """Compile a program; return a function of (query, key, value) and a number of threads."""
    library = Path(folder) / f"{name}.so"
    subprocess.run(
        [str(compiler()), *FLAGS, str(measure.HERE / name), "-o", str(library)], check=True
    )
    function = ctypes.CDLL(str(library)).attention
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * (1 + (name in WITH_THREADS))
    function.restype = None

    def attention(arrays: np.ndarray, threads: int = 1) -> np.ndarray:
        output = np.full_like(arrays[0], np.nan)
        pointers = [array.ctypes.data for array in (*arrays, output)]
        function(*pointers, arrays.shape[1], *[threads] * (name in WITH_THREADS))
        return output

    return attention


def check(
    name: str, attention: Attention, before: Attention | None, arrays: np.ndarray
) -> None:
    """Raise an AssertionError where the step is wrong, or differs from the step before."""
    query, key, value = arrays.astype(float)
    seen = np.tri(len(query), dtype=bool) if name == "causal.cpp" else np.ones((1, 1), bool)
    expected = stable.attention(query, key, value, np.where(seen, 0, -np.inf))
    output = attention(arrays, 1)
    # An error of a score is one of its weight, and grows with the score.
    largest = max(1, abs(query @ key.T).max() / np.sqrt(measure.HEAD_DIM))
    tolerance = 4 * largest * np.finfo(np.float32).eps
    np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)
    if before and name not in WITH_THREADS:
        np.testing.assert_allclose(output, before(arrays, 1), rtol=0, atol=2 * tolerance)
    elif before:
        # The last query sees every key in either case.
        rows = slice(-1, None) if name == "causal.cpp" else slice(None)
        np.testing.assert_array_equal(output[rows], before(arrays, 1)[rows], strict=True)
        for threads in (2, 3, 5):
            np.testing.assert_array_equal(attention(arrays, threads), output, strict=True)
        print("the same bits with 1, 2, 3 and 5 threads")
    print(f"off by {abs(output - expected).max():.1e}, where scores reach {largest:.0f}")


def main(name: str) -> None:
    """Compile, check and measure one step."""
    if compiler() is None:
        print(f"{name} was not run: neither g++ nor clang++ was found, and CXX is not set")
        return
    arrays = measure.problem()
    with tempfile.TemporaryDirectory() as folder:
        attention = build(name, folder)
        before = build(BEFORE[name], folder) if BEFORE[name] else None
        check(name, attention, before, arrays)
        # Large scores move the references of an online softmax again and again.
        check(name, attention, before, arrays * np.float32([[[8]], [[1]], [[1]]]))
        cores = measure.CORES if name in WITH_THREADS else 1
        measure.report(
            name,
            lambda: attention(arrays, cores),
            cores=cores,
            is_causal=name == "causal.cpp",
            rounds=1 if name == "loops.cpp" else 5,
        )


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in BEFORE:
        raise SystemExit(f"usage: python compiled.py {{{','.join(BEFORE)}}}")
    main(sys.argv[1])
