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

import checks
import measure
import numpy as np
import stable

BEFORE = {
    "loops.cpp": None,
    "vectors.cpp": "loops.cpp",
    "registers.cpp": "vectors.cpp",
    "powers.cpp": "registers.cpp",
    "lanes.cpp": "powers.cpp",
    "lazy.cpp": "lanes.cpp",
    "threads.cpp": "lazy.cpp",
    "causal.cpp": "threads.cpp",
    "blocks.cpp": "threads.cpp",
}
WITH_THREADS = ("threads.cpp", "causal.cpp", "blocks.cpp")
# These are not steps of the same call; each has its own check.
OTHERS = {
    "decode.cpp": checks.decode,
    "eight_bits.cpp": checks.eight_bits,
    "backward.cpp": checks.backward,
}
FLAGS = ["-std=c++17", "-O3", "-march=native", "-Wno-psabi", "-shared", "-fPIC", "-pthread"]

Attention = Callable[[np.ndarray, int], np.ndarray]


def compiler() -> str | None:
    """Return the C++ compiler of this machine, or None."""
    return (
        shutil.which(os.environ.get("CXX", ""))
        or shutil.which("g++")
        or shutil.which("clang++")
    )


def library(name: str, folder: str) -> ctypes.CDLL:
    """Compile a program, and load it."""
    path = Path(folder) / f"{name}.so"
    subprocess.run(
        [str(compiler()), *FLAGS, str(measure.HERE / name), "-o", str(path)], check=True
    )
    return ctypes.CDLL(str(path))


def build(name: str, folder: str) -> Attention:
    """Compile a step; return a function of (query, key, value) and a number of threads."""
    function = library(name, folder).attention
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * (1 + (name in WITH_THREADS))
    function.restype = None

    def attention(arrays: np.ndarray, threads: int = 1) -> np.ndarray:
        output = np.full_like(arrays[0], np.nan)
        pointers = [array.ctypes.data for array in (*arrays, output)]
        function(*pointers, arrays.shape[1], *[threads] * (name in WITH_THREADS))
        return output

    return attention


def check(name: str, attention: Attention, before: Attention | None, arrays: np.ndarray) -> str:
    """Return the largest error; raise an AssertionError if it is too large, or bits differ."""
    query, key, value = arrays.astype(float)
    seen = np.tri(len(query), dtype=bool) if name == "causal.cpp" else np.ones((1, 1), bool)
    expected = stable.attention(query, key, value, np.where(seen, 0, -np.inf))
    output = attention(arrays, 1)
    # An absolute error of a score is a relative error of its weight, and grows with the score.
    largest = max(1, abs(query @ key.T).max() / np.sqrt(measure.HEAD_DIM))
    tolerance = 4 * largest * np.finfo(np.float32).eps
    np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)
    if before and name not in WITH_THREADS:
        np.testing.assert_allclose(output, before(arrays, 1), rtol=0, atol=2 * tolerance)
    elif before:
        # The last query sees every key, causal or not.
        rows = slice(-1, None) if name == "causal.cpp" else slice(None)
        np.testing.assert_array_equal(output[rows], before(arrays, 1)[rows], strict=True)
        for threads in (2, 3, 5):
            np.testing.assert_array_equal(attention(arrays, threads), output, strict=True)
    return f"{abs(output - expected).max():.1e} where scores reach {largest:.0f}"


def main(name: str) -> None:
    """Compile, check and measure one step."""
    if compiler() is None:
        print(f"{name} was not run: neither g++ nor clang++ was found, and CXX is not set")
        return
    with tempfile.TemporaryDirectory() as folder:
        if name in OTHERS:
            OTHERS[name](library(name, folder))
            return
        arrays = measure.problem()
        attention = build(name, folder)
        before = build(BEFORE[name], folder) if BEFORE[name] else None
        # Large scores move the references of an online softmax again and again.
        larger = arrays * np.float32([[[8]], [[1]], [[1]]])
        errors = [check(name, attention, before, each) for each in (arrays, larger)]
        if name in WITH_THREADS:
            print("the same bits with 1, 2, 3 and 5 threads")
        print(f"largest error {', '.join(errors)}")
        cores = measure.CORES if name in WITH_THREADS else 1
        if name == "threads.cpp" and cores == 1:
            measure.cannot_show("that threads share the work, because it offers one core")
        measure.report(
            name,
            lambda: attention(arrays, cores),
            cores=cores,
            is_causal=name == "causal.cpp",
            rounds=1 if name == "loops.cpp" else 5,
        )


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in BEFORE | OTHERS:
        raise SystemExit(f"usage: python compiled.py {{{','.join(BEFORE | OTHERS)}}}")
    main(sys.argv[1])
