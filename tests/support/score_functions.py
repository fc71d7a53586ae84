"""C score functions: their source, the objects by which libraries hold them, and what they
compute."""

import ctypes
import shlex
import shutil
import subprocess
import sysconfig
from ctypes import POINTER, c_float, c_int64, c_void_p
from functools import cache

import numpy as np
import pytest

from regard import ScoreFunction

QUERIES, KEYS, STRIDE, FIRST_KEY, HEAD, ENTRY = 3, 5, 7, 40, 2, 6
POSITIONS = np.array([50, 41, 77], np.int64)
PARAMETERS = (
    *("scores", "queries", "keys", "stride", "query_positions", "first_key", "head", "entry"),
    "user_data",
)
# 2 * score plus all other arguments, so that an argument in the wrong place shows.
C_SOURCE = """
#include <stdint.h>
#define FUNCTIONS(function, derivative, real)                                                   \\
  void function(real* scores, int64_t queries, int64_t keys, int64_t stride,                    \\
                const int64_t* query_positions, int64_t first_key, int64_t head, int64_t entry, \\
                void* user_data) {                                                              \\
    for (int64_t q = 0; q < queries; ++q)                                                       \\
      for (int64_t k = 0; k < keys; ++k)                                                        \\
        scores[k * stride + q] = 2 * scores[k * stride + q] + query_positions[q]                \\
            - (first_key + k) + 10 * head + 100 * entry + (user_data ? *(real*)user_data : 0);  \\
  }                                                                                             \\
  void derivative(real* scores, int64_t queries, int64_t keys, int64_t stride,                  \\
                  const int64_t* query_positions, int64_t first_key, int64_t head,              \\
                  int64_t entry, void* user_data) {                                             \\
    for (int64_t q = 0; q < queries; ++q)                                                       \\
      for (int64_t k = 0; k < keys; ++k) scores[k * stride + q] = 2;                            \\
  }
FUNCTIONS(function_float32, derivative_float32, float)
FUNCTIONS(function_float64, derivative_float64, double)
"""
C_TYPES = ("{}", "int64_t", "int64_t", "int64_t", "int64_t *", *["int64_t"] * 3, "void *")
CTYPES = [POINTER(c_float), *[c_int64] * 3, POINTER(c_int64), *[c_int64] * 3, c_void_p]


def c_signature(real="float", **others):
    """Return the signature as cffi writes it, with other types for some parameters."""
    types = [others.get(name, each) for name, each in zip(PARAMETERS, C_TYPES, strict=True)]
    return ", ".join(types).format(f"{real} *")


def call(address, dtype, user_data=None):
    """Return a tile, (queries, keys), before and after a call of the function. The numbers between
    its rows must not change."""
    scores = np.arange(KEYS * STRIDE, dtype=dtype)
    before = scores.copy()
    ScoreFunction.c_type(dtype)(address)(
        *(np.ctypeslib.as_ctypes(scores), QUERIES, KEYS, STRIDE),
        *(np.ctypeslib.as_ctypes(POSITIONS), FIRST_KEY, HEAD, ENTRY, user_data or None),
    )
    before, after = before.reshape(KEYS, STRIDE), scores.reshape(KEYS, STRIDE)
    assert np.array_equal(after[:, QUERIES:], before[:, QUERIES:])
    return before[:, :QUERIES].T, after[:, :QUERIES].T


def assert_computes(score_function, dtype, addend=0):
    """Check that the function, and the derivative if there is one, compute what C_SOURCE
    computes."""
    assert score_function.dtype == np.dtype(dtype)
    data = score_function.user_data_address
    before, after = call(score_function.address, dtype, data)
    distances = POSITIONS[:, None] - (FIRST_KEY + np.arange(KEYS))
    assert np.array_equal(after, 2 * before + distances + 10 * HEAD + 100 * ENTRY + addend)
    if score_function.derivative_address:
        _, after = call(score_function.derivative_address, dtype, data)
        assert np.array_equal(after, np.full((QUERIES, KEYS), 2))


def in_python(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    addend = ctypes.cast(user_data, POINTER(c_float))[0] if user_data else 0
    for q in range(queries):
        for k in range(keys):
            distance = positions[q] - (first_key + k)
            scores[k * stride + q] = (
                2 * scores[k * stride + q] + distance + 10 * head + 100 * entry + addend
            )


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def build(source, *options):
    """Build a shared library with the compiler that built Python, or skip the test."""
    command = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    if not command or shutil.which(command[0]) is None:
        pytest.skip("there is no C compiler")
    built = source.with_suffix(".so")
    run(*command, "-w", "-fPIC", *options, source, "-o", built)
    return str(built)


@cache
def loaded(library):
    return ctypes.CDLL(library)


@cache
def cffi():
    return pytest.importorskip("cffi", reason="cffi is not installed").FFI()


@cache
def in_numba(dtype):
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    scalar = np.dtype(dtype).type

    @numba.cfunc(ScoreFunction.numba_signature(dtype))
    def function(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        addends = numba.carray(user_data, 1, scalar)
        for q in range(queries):
            for k in range(keys):
                distance = positions[q] - (first_key + k)
                scores[k * stride + q] = (
                    2 * scores[k * stride + q] + distance + 10 * head + 100 * entry + addends[0]
                )

    return function


KEPT = []  # objects that an address does not keep alive


def address_in(library, dtype, kind="function"):
    return ctypes.cast(loaded(library)[f"{kind}_{np.dtype(dtype)}"], c_void_p).value


def with_argtypes(library, dtype, restype=None):
    function = loaded(library)[f"function_{dtype}"]
    function.argtypes = ScoreFunction.c_type(dtype)._argtypes_
    function.restype = restype
    return function


def real(dtype):
    return {"float32": "float", "float64": "double"}[str(dtype)]


def cffi_pointer(library, dtype):
    return cffi().cast(f"void(*)({c_signature(real(dtype))})", address_in(library, dtype))
