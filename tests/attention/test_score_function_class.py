"""Test handles to C score functions: the functions of every library, their signatures, and user
data."""

import copy
import ctypes
import gc
import importlib.util
import pickle
import shlex
import shutil
import subprocess
import sys
import sysconfig
import weakref
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache, partial

import numpy as np
import pytest

import regard
from messages import says

ScoreFunction = regard.ScoreFunction
has_cffi = importlib.util.find_spec("cffi") is not None
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
CYTHON_SOURCE = """
from libc.stdint cimport int64_t
cimport numpy as cnp

cdef api void function_float32(
    float* scores, int64_t queries, int64_t keys, int64_t stride, const int64_t* query_positions,
    int64_t first_key, int64_t head, int64_t entry, void* user_data
) noexcept nogil:
    cdef int64_t q, k
    for q in range(queries):
        for k in range(keys):
            scores[k * stride + q] = (
                2 * scores[k * stride + q] + query_positions[q] - (first_key + k)
                + 10 * head + 100 * entry + (<float*> user_data)[0]
            )

cdef api void function_float64(
    cnp.float64_t* scores, cnp.int64_t queries, cnp.int64_t keys, cnp.npy_intp stride,
    cnp.int64_t* query_positions, long long first_key, Py_ssize_t head, cnp.intp_t entry,
    void* user_data
) noexcept nogil:
    cdef int64_t q, k
    for q in range(queries):
        for k in range(keys):
            scores[k * stride + q] = (
                2 * scores[k * stride + q] + query_positions[q] - (first_key + k)
                + 10 * head + 100 * entry + (<double*> user_data)[0]
            )
"""
C_TYPES = ("{}", "int64_t", "int64_t", "int64_t", "int64_t *", *["int64_t"] * 3, "void *")


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


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the path of a shared library of C_SOURCE."""
    source = tmp_path_factory.mktemp("library") / "functions.c"
    source.write_text(C_SOURCE, encoding="utf-8")
    return build(source)


@cache
def loaded(library):
    return ctypes.CDLL(library)


@cache
def cffi():
    return pytest.importorskip("cffi", reason="cffi is not installed").FFI()


@cache
def low_level_callable():
    return pytest.importorskip("scipy", reason="SciPy is not installed").LowLevelCallable


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


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_set_context = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_void_p)(
    ("PyCapsule_SetContext", ctypes.pythonapi)
)
KEPT = []  # objects that a PyCapsule or an address does not keep alive


def capsule(address, name):
    KEPT.append(None if name is None else name.encode())
    return _new_capsule(address, KEPT[-1], None)


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


def cffi_of_library(library, dtype):
    module = pytest.importorskip("cffi", reason="cffi is not installed")
    ffi = module.FFI()
    ffi.cdef(f"void function_{dtype}({c_signature(real(dtype))});")
    return getattr(ffi.dlopen(library), f"function_{dtype}")


def capsule_of(library, dtype):
    return capsule(address_in(library, dtype), f"void ({c_signature(real(dtype))})")


# Every kind of function, made from the path of a library and a dtype, and whether its types are
# known.
KINDS = {
    "address": (address_in, False),
    "np.uint64": (lambda *given: np.uint64(address_in(*given)), False),
    "c_void_p": (lambda *given: c_void_p(address_in(*given)), False),
    "CDLL": (lambda library, dtype: loaded(library)[f"function_{dtype}"], False),
    "CDLL with argtypes": (with_argtypes, True),
    "CDLL with a result not set": (partial(with_argtypes, restype=c_int), True),
    "CFUNCTYPE": (lambda *given: ScoreFunction.c_type(given[1])(address_in(*given)), True),
    "cffi": (cffi_pointer, True),
    "cffi library": (cffi_of_library, True),
    "cffi void *": (lambda *given: cffi().cast("void *", address_in(*given)), False),
    "PyCapsule": (capsule_of, True),
    "LowLevelCallable of ctypes": (
        lambda *given: low_level_callable()(with_argtypes(*given)),
        True,
    ),
    "LowLevelCallable of cffi": (lambda *given: low_level_callable()(cffi_pointer(*given)), True),
    "LowLevelCallable of a PyCapsule": (
        lambda *given: low_level_callable()(capsule_of(*given)),
        True,
    ),
    "LowLevelCallable with a signature": (
        lambda *given: low_level_callable()(
            ctypes.CFUNCTYPE(None)(address_in(*given)),
            signature=f"void ({c_signature(real(given[1]))})",
        ),
        True,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_every_library(kind, dtype, library):
    make, is_typed = KINDS[kind]
    function = make(library, dtype)
    derivative = address_in(library, dtype, "derivative")
    assert_computes(ScoreFunction(function, dtype=dtype), dtype)
    assert_computes(ScoreFunction(function, derivative, dtype=np.dtype(dtype)), dtype)
    if is_typed:
        assert_computes(ScoreFunction(function), dtype)
        other = "float64" if dtype == "float32" else "float32"
        wanted = "double*" if dtype == "float32" else "float*"
        with pytest.raises(TypeError, match=says("function", wanted, "scores", "argument 1")):
            ScoreFunction(function, dtype=other)
        # Functions and derivatives are read in the same way.
        main = address_in(library, other)
        with pytest.raises(TypeError, match=says("derivative", wanted, "scores")):
            ScoreFunction(main, function, dtype=other)
        assert ScoreFunction(address_in(library, dtype), function, dtype=dtype).dtype == dtype
    else:
        with pytest.raises(
            TypeError, match=says("dtype", "float32", "float64", "function", "None")
        ):
            ScoreFunction(function)


def test_functions_of_numba():
    function = in_numba("float32")
    addend = np.array([0.5], np.float32)
    assert_computes(ScoreFunction(function, user_data=addend), "float32", 0.5)
    assert_computes(ScoreFunction(function.ctypes, None, addend), "float32", 0.5)
    if has_cffi:
        assert_computes(ScoreFunction(function.cffi, None, addend, dtype="f4"), "float32", 0.5)
    low = low_level_callable()(function.ctypes, addend.ctypes.data_as(c_void_p))
    assert_computes(ScoreFunction(low), "float32", 0.5)
    with pytest.raises(TypeError, match=says("derivative", "double*", "float32*")):
        ScoreFunction(1, function, dtype="float64")


def test_signatures_of_numba_are_checked():
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    types = ScoreFunction.numba_signature("float64")
    cfunc = numba.cfunc(types.replace("int64, int64, voidptr", "int64, int32, CPointer(int8)"))

    @cfunc
    def narrow(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        pass

    with pytest.raises(TypeError, match=says("entry", "argument 8", "int32", "int64_t", "double*")):
        ScoreFunction(narrow, dtype="float64")

    class Stand:
        """A stand-in that differs only in its types, since compiling is slow."""

        __module__ = "numba.core.ccallback"
        address = 1

        def __init__(self, signature):
            self._sig = numba.core.sigutils._parse_signature_string(signature)

    assert ScoreFunction(Stand(types)).dtype == np.float64
    assert ScoreFunction(Stand(types.replace("voidptr", "CPointer(float64)"))).address == 1
    with pytest.raises(TypeError, match=says("function", "return", "void", "float64")):
        ScoreFunction(Stand(types.replace("void(", "float64(")))
    with pytest.raises(TypeError, match=says("9 arguments", "8")):
        ScoreFunction(Stand(types.replace(", voidptr", "")))


def test_dispatchers_of_numba_are_refused():
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    for decorate in (numba.njit, numba.vectorize):
        kind = type(decorate(in_python)).__name__
        words = ("numba.cfunc", 'regard.ScoreFunction.numba_signature("float64")', kind)
        with pytest.raises(TypeError, match=says("function", *words)):
            ScoreFunction(decorate(in_python), dtype="float64")
        with pytest.raises(TypeError, match=says("derivative", "numba.cfunc")):
            ScoreFunction(1, decorate(in_python), dtype="float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_python_by_ctypes(dtype):
    function = ScoreFunction.c_type(dtype)(in_python)
    assert_computes(ScoreFunction(function), dtype)
    assert_computes(ScoreFunction(function, None, c_float(3)), dtype, 3)


def test_functions_of_python_by_cffi():
    @cffi().callback(f"void({c_signature()})")
    def function(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        in_python(scores, queries, keys, stride, positions, first_key, head, entry, None)

    assert_computes(ScoreFunction(function), "float32")


@pytest.mark.parametrize("function", [in_python, abs, print, np.exp, dict, partial(in_python)])
def test_functions_of_python_are_refused(function):
    kind = type(function).__name__
    advice = ('ScoreFunction.numba_signature("float64")', 'ScoreFunction.c_type("float64")')
    words = (kind, "GIL", "numba.cfunc", *(f"regard.{each}" for each in advice))
    with pytest.raises(TypeError, match=says("function", *words)):
        ScoreFunction(function, dtype="float64")
    with pytest.raises(TypeError, match=says("derivative", kind, "GIL", "numba.cfunc")):
        ScoreFunction(1, function, dtype="float32")


@pytest.mark.parametrize("thing", [None, True, 1.5, "0x1000", b"f", [1], (1, 2), np.ones(2)])
def test_other_objects_are_refused(thing):
    with pytest.raises(TypeError, match=says("function", "C function", "Numba", "address")):
        ScoreFunction(thing, dtype="float32")
    if thing is not None:
        with pytest.raises(TypeError, match=says("derivative", "C function", "Numba", "address")):
            ScoreFunction(1, thing, dtype="float32")


@pytest.mark.parametrize("name", ["function", "derivative", "user_data"])
@pytest.mark.parametrize("address", [0, -1, 2**64, -(2**70), np.int32(0), np.int64(-5)])
def test_addresses_out_of_range_are_refused(name, address):
    given = {"function": 1} | {name: address}
    with pytest.raises(ValueError, match=says(name, "address", str(address))):
        ScoreFunction(**given, dtype="float32")


def test_null_pointers_are_refused():
    nulls = [c_void_p(), ScoreFunction.c_type()()]
    if has_cffi:
        nulls += [cffi().NULL, cffi().cast(f"void(*)({c_signature()})", 0)]
    for null in nulls:
        with pytest.raises(ValueError, match=says("function", "NULL")):
            ScoreFunction(null, dtype="float32")
        with pytest.raises(ValueError, match=says("derivative", "NULL")):
            ScoreFunction(1, null, dtype="float32")
        with pytest.raises(ValueError, match=says("user_data", "NULL", "None")):
            ScoreFunction(1, None, null, dtype="float32")
    with pytest.raises(ValueError, match=says("user_data", "NULL", "None")):
        ScoreFunction(1, None, POINTER(c_float)(), dtype="float32")


@pytest.mark.parametrize("dtype", ["float16", "int32", np.complex64, ">f4", "text", object, 3.5])
def test_other_types_are_refused(dtype):
    words = ("dtype", "float32", "float64")
    for refuse in (ScoreFunction.c_type, ScoreFunction.numba_signature):
        with pytest.raises(TypeError, match=says(*words)):
            refuse(dtype)
    with pytest.raises(TypeError, match=says(*words)):
        ScoreFunction(1, dtype=dtype)


CTYPES = [POINTER(c_float), *[c_int64] * 3, POINTER(c_int64), *[c_int64] * 3, c_void_p]
INTEGERS = [name for name, each in zip(PARAMETERS, CTYPES, strict=True) if each is c_int64]
# Types that an argument must not have, in ctypes and in C.
WRONG = [
    ("scores", c_float, "float"),
    ("scores", POINTER(c_int32), "int32_t *"),
    ("scores", POINTER(POINTER(c_float)), "float * *"),
    ("scores", POINTER(ctypes.c_longdouble), "long double *"),
    *((name, c_int32, "int32_t") for name in INTEGERS),
    *((name, c_uint64, "unsigned long long") for name in INTEGERS),
    *((name, c_double, "double") for name in INTEGERS),
    *((name, c_void_p, "void *") for name in INTEGERS),
    ("query_positions", c_int64, "int64_t"),
    ("query_positions", POINTER(c_int32), "int32_t *"),
    ("query_positions", POINTER(c_uint64), "uint64_t *"),
    ("query_positions", POINTER(c_double), "double *"),
    ("user_data", c_int64, "int64_t"),
    ("user_data", c_double, "double"),
    ("user_data", ctypes.py_object, "PyObject"),
]


@pytest.mark.parametrize(("name", "of_ctypes", "text"), WRONG)
def test_every_argument_is_checked(name, of_ctypes, text):
    number = PARAMETERS.index(name)
    signature = c_signature(**{name: text})
    wrong = [
        (ctypes.CFUNCTYPE(None, *CTYPES[:number], of_ctypes, *CTYPES[number + 1 :])(1), of_ctypes),
        (capsule(1, f"void ({signature})"), text),
    ]
    if has_cffi and text != "PyObject":
        wrong.append((cffi().cast(f"void(*)({signature})", 1), text))
    needed = {"scores": "float*", "query_positions": "int64_t*", "user_data": "void*"}
    for function, came in wrong:
        words = (
            *(needed.get(name, "int64_t"), name, f"argument {number + 1}"),
            f"got {getattr(came, '__name__', came)};",
            "void (float* scores, int64_t queries, int64_t keys, int64_t stride, const int64_t* "
            "query_positions, int64_t first_key, int64_t head, int64_t entry, void* user_data)",
        )
        for dtype in (None, "float32"):
            with pytest.raises(TypeError, match=says("function", *words)):
                ScoreFunction(function, dtype=dtype)
        with pytest.raises(TypeError, match=says("derivative", *words)):
            ScoreFunction(1, function, dtype="float32")


def test_constant_scores_are_refused():
    with pytest.raises(TypeError, match=says("float*", "scores", "argument 1", "const float *")):
        ScoreFunction(capsule(1, f"void ({c_signature('const float')})"))


@pytest.mark.parametrize("count", [0, 1, 8, 10])
def test_the_number_of_arguments_is_checked(count):
    types = [*CTYPES, c_void_p][:count]
    text = f"void ({', '.join([*c_signature().split(', '), 'void *'][:count])})"
    for function in (ctypes.CFUNCTYPE(None, *types)(1), capsule(1, text)):
        with pytest.raises(TypeError, match=says("function", "9 arguments", str(count), "void")):
            ScoreFunction(function)


@pytest.mark.parametrize("result", [c_int, c_float, c_void_p, ctypes.py_object])
def test_functions_return_nothing(result):
    function = ctypes.CFUNCTYPE(result, *CTYPES)(1)
    with pytest.raises(TypeError, match=says("function", "return", "void", result.__name__)):
        ScoreFunction(function)


def test_results_in_signatures_are_checked(library):
    with pytest.raises(TypeError, match=says("return", "double")):
        ScoreFunction(capsule(1, f"double ({c_signature()})"))
    with pytest.raises(TypeError, match=says("return", "c_double")):
        ScoreFunction(with_argtypes(library, "float32", c_double))


def test_functions_that_need_the_gil_are_refused():
    function = ctypes.PYFUNCTYPE(None, *CTYPES)(1)
    for thing in (function, ctypes.pythonapi.Py_IncRef):
        with pytest.raises(TypeError, match=says("function", "GIL", "CFUNCTYPE", "CDLL")):
            ScoreFunction(thing, dtype="float32")


def test_pointers_without_types_are_accepted():
    """Someone in a hurry may write argtypes in this way."""
    types = [each if each is c_int64 else c_void_p for each in CTYPES]
    function = ctypes.CFUNCTYPE(None, *types)(1)
    assert ScoreFunction(function, dtype="float64").dtype == np.float64
    with pytest.raises(TypeError, match=says("dtype", "void*", "scores")):
        ScoreFunction(function)
    types = [np.ctypeslib.ndpointer(np.float64), *CTYPES[1:4], np.ctypeslib.ndpointer(np.int64)]
    assert ScoreFunction(ctypes.CFUNCTYPE(None, *types, *CTYPES[5:])(1)).dtype == np.float64


SPELLINGS = {
    "float32": [
        "void (float *, int64_t, int64_t, int64_t, int64_t const *, int64_t, int64_t, int64_t, "
        "void *)",
        "void(float*,int64_t,int64_t,int64_t,const int64_t*,int64_t,int64_t,int64_t,void*)",
        " void ( npy_float32 * , npy_int64, PY_LONG_LONG, signed long long int, long long const *, "
        "npy_longlong, int64_t const, const int64_t, float const * ) ",
        "void (__pyx_t_5numpy_float32_t *, __pyx_t_5numpy_int64_t, __pyx_t_5numpy_int64_t, "
        "__pyx_t_5numpy_int64_t, __pyx_t_5numpy_int64_t const *, __pyx_t_5numpy_int64_t, "
        "__pyx_t_5numpy_int64_t, __pyx_t_5numpy_int64_t, void *)",
    ],
    "float64": [
        "void (double *, longlong, longlong, longlong, longlong *, longlong, longlong, longlong, "
        "void *)",
        "void (npy_double *, int64_t, Py_ssize_t, npy_intp, intptr_t *, ssize_t, ptrdiff_t, "
        "__pyx_t_5numpy_intp_t, double *)",
        *["void (double *, long, long int, long, signed long *, long, long, npy_long, void *)"]
        * (ctypes.sizeof(ctypes.c_long) == 8),
    ],
}


@pytest.mark.parametrize("dtype", SPELLINGS)
@pytest.mark.parametrize("wrong", ["unsigned {}", "{}_ptr"])
def test_spellings_of_signatures(dtype, wrong):
    for text in SPELLINGS[dtype]:
        assert ScoreFunction(capsule(1, text)).dtype == dtype
        result, _, arguments = text.partition("(")
        first, second, *others = arguments.split(",")
        changed = ",".join([first, wrong.format(second.strip()), *others])
        with pytest.raises(TypeError, match=says("queries", "argument 2")):
            ScoreFunction(capsule(1, f"{result}({changed}"))


@pytest.mark.parametrize("name", [None, "", "numpy._ARRAY_API", "float32", "void ("])
def test_capsules_without_a_signature_are_refused(name):
    words = ("function", "PyCapsule", "__pyx_capi__", "signature must be void")
    with pytest.raises(TypeError, match=says(*words, "None" if name is None else f"'{name}'")):
        ScoreFunction(capsule(1, name), dtype="float32")


def test_functions_of_cython(tmp_path):
    pytest.importorskip("Cython", reason="Cython is not installed")
    source = tmp_path / "score_functions.pyx"
    source.write_text(CYTHON_SOURCE, encoding="utf-8")
    run(sys.executable, "-m", "cython", "-3", source)
    folders = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    built = build(source.with_suffix(".c"), *folders)
    spec = importlib.util.spec_from_file_location("score_functions", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = module.__pyx_capi__
    for dtype in ("float32", "float64"):
        function, addend = functions[f"function_{dtype}"], np.array(4, dtype)
        assert_computes(ScoreFunction(function, user_data=addend), dtype, 4)
        low = low_level_callable()(function, addend.ctypes.data_as(c_void_p))
        assert_computes(ScoreFunction(low), dtype, 4)


class Pair(ctypes.Structure):
    _fields_ = (("first", c_float), ("second", c_int))


class Either(ctypes.Union):
    _fields_ = (("first", c_float), ("second", c_int))


def filled_cffi(kind):
    memory = cffi().new(kind, [2.5]) if "[" in kind else cffi().new(kind, 2.5)
    return memory, int(cffi().cast("uintptr_t", memory))


def pointer_to(number):
    memory = c_float(number)
    return ctypes.pointer(memory), ctypes.addressof(memory)


def at_its_own(memory):
    return memory, ctypes.addressof(memory)


def as_text():
    memory = ctypes.create_string_buffer(np.float32(2.5).tobytes())
    pointer = ctypes.cast(memory, ctypes.c_char_p)
    pointer.memory = memory
    return pointer, ctypes.addressof(memory)


def of_array(array, kind=lambda array: array):
    KEPT.append(array)
    return kind(array), array.ctypes.data


NUMBERS = np.array([2.5, 1.0], np.float32)
STRUCTURED = np.array([(2.5, 1)], [("first", "f4"), ("second", "i8")])
# User data whose first number is 2.5, and its address.
USER_DATA = {
    "array": lambda: of_array(NUMBERS),
    "matrix": lambda: of_array(np.full((2, 3), 2.5, np.float32)),
    "array without axes": lambda: of_array(np.array(2.5, np.float32)),
    "structured array": lambda: of_array(STRUCTURED),
    "read-only array": lambda: of_array(np.frombuffer(NUMBERS.tobytes(), np.float32)),
    "int": lambda: of_array(NUMBERS, lambda array: array.ctypes.data),
    "np.uint64": lambda: of_array(NUMBERS, lambda array: np.uint64(array.ctypes.data)),
    "c_void_p": lambda: of_array(NUMBERS, lambda array: c_void_p(array.ctypes.data)),
    "data_as": lambda: of_array(NUMBERS, lambda array: array.ctypes.data_as(POINTER(c_float))),
    "pointer": lambda: pointer_to(2.5),
    "number": lambda: at_its_own(c_float(2.5)),
    "ctypes array": lambda: at_its_own((c_float * 2)(2.5, 1)),
    "structure": lambda: at_its_own(Pair(2.5, 1)),
    "union": lambda: at_its_own(Either(2.5)),
    "c_char_p": as_text,
    "PyCapsule": lambda: of_array(NUMBERS, lambda array: capsule(array.ctypes.data, "numbers")),
    "nameless PyCapsule": lambda: of_array(NUMBERS, lambda array: capsule(array.ctypes.data, None)),
    "cffi array": lambda: filled_cffi("float[2]"),
    "cffi pointer": lambda: filled_cffi("float *"),
}


@pytest.mark.parametrize("kind", USER_DATA)
def test_user_data_of_every_kind(kind, library):
    data, address = USER_DATA[kind]()
    function = ScoreFunction(with_argtypes(library, "float32"), user_data=data)
    assert function.user_data_address == address
    assert type(function.user_data_address) is int
    del data
    gc.collect()
    assert_computes(function, "float32", 2.5)


def test_no_user_data(library):
    function = ScoreFunction(with_argtypes(library, "float32"))
    assert function.user_data_address == function.derivative_address == 0


@pytest.mark.parametrize(
    "thing",
    [
        *(1.5, "text", b"bytes", bytearray(4), memoryview(b"four"), [1.0], (1.0,), True, object()),
        *(np.float32(1), ctypes.byref(c_float(1)), ctypes.py_object([]), c_float, in_python),
        *(np.array(["text", None], object), np.ones(2, ">f4")),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_other_user_data_are_refused(thing):
    with pytest.raises(TypeError, match=says("user_data")):
        ScoreFunction(1, user_data=thing, dtype="float32")


def test_cffi_structures_are_refused():
    ffi = pytest.importorskip("cffi", reason="cffi is not installed").FFI()
    ffi.cdef("typedef struct { float first; } pair;")
    memory = ffi.new("pair *", [2.5])
    for thing in (memory[0], ffi.cast("int", 3)):
        with pytest.raises(TypeError, match=says("user_data", "pointer")):
            ScoreFunction(1, user_data=thing, dtype="float32")
    for thing in (memory, ffi.cast("int", 3)):
        with pytest.raises(TypeError, match=says("function", "cffi function pointer")):
            ScoreFunction(thing, dtype="float32")
    assert ScoreFunction(1, user_data=ffi.addressof(memory[0]), dtype="float32").user_data_address


@pytest.mark.parametrize(
    "array",
    [
        np.ones((4, 4))[:, :2],
        np.ones((4, 4)).T[:2],
        np.ones(4)[::-1],
        np.zeros(17, np.uint8)[1:].view(np.float64),
    ],
)
def test_arrays_with_gaps_are_refused(array):
    with pytest.raises(ValueError, match=says("user_data", "C-contiguous", "aligned", "strides")):
        ScoreFunction(1, user_data=array, dtype="float32")


def test_user_data_of_low_level_callables(library):
    data, others = np.array([3], np.float32), np.array([4], np.float32)
    low = partial(low_level_callable(), with_argtypes(library, "float32"))
    with_data = low(data.ctypes.data_as(c_void_p))
    assert_computes(ScoreFunction(with_data), "float32", 3)
    assert_computes(ScoreFunction(with_data, user_data=others), "float32", 4)
    assert_computes(ScoreFunction(low(capsule(data.ctypes.data, None))), "float32", 3)
    if has_cffi:
        pointer = cffi().cast("void *", data.ctypes.data)
        assert_computes(ScoreFunction(low(pointer)), "float32", 3)
    # One address is passed to both functions.
    with_others = low(others.ctypes.data_as(c_void_p))
    assert ScoreFunction(with_data, with_data).user_data_address == data.ctypes.data
    assert ScoreFunction(with_data, low()).user_data_address == data.ctypes.data
    assert ScoreFunction(low(), with_others, data).user_data_address == data.ctypes.data
    for function in (with_data, low()):
        with pytest.raises(ValueError, match=says("function", "derivative", "user_data")):
            ScoreFunction(function, with_others)


def test_the_context_of_a_capsule_is_user_data(library):
    """The same holds in SciPy."""
    data = np.array([3], np.float32)
    function = capsule_of(library, "float32")
    assert _set_context(function, data.ctypes.data) == 0
    assert_computes(ScoreFunction(function), "float32", 3)
    assert_computes(ScoreFunction(low_level_callable()(function)), "float32", 3)


class Tracked(np.ndarray):
    pass


class TrackedFloats(c_float * 2):
    pass


def test_functions_and_user_data_stay_alive():
    array = np.array([2.5], np.float32).view(Tracked)
    function, derivative = ScoreFunction.c_type()(in_python), ScoreFunction.c_type()(in_python)
    gone = [weakref.ref(each) for each in (array, function, derivative)]
    handle = ScoreFunction(function, derivative, array)
    del array, function, derivative
    gc.collect()
    assert all(each() is not None for each in gone)
    _, after = call(handle.address, "float32", handle.user_data_address)
    assert np.array_equal(
        after, call(handle.derivative_address, "float32", gone[0]().ctypes.data)[1]
    )
    del handle
    gc.collect()
    assert all(each() is None for each in gone)


def test_memory_of_ctypes_stays_alive():
    memory = TrackedFloats(2.5, 1)
    gone = weakref.ref(memory)
    pointer = ctypes.pointer(memory)
    direct = ScoreFunction(1, user_data=memory, dtype="float32")
    through = ScoreFunction(1, user_data=pointer, dtype="float32")
    del memory, pointer, direct
    gc.collect()
    assert gone() is not None
    assert through.user_data_address == ctypes.addressof(gone())
    del through
    gc.collect()
    assert gone() is None


def test_a_score_function_does_not_change():
    function = ScoreFunction(1, 2, 3, dtype="float32")
    for name in ("dtype", "address", "derivative_address", "user_data_address", "other"):
        with pytest.raises(AttributeError):
            setattr(function, name, 5)
        with pytest.raises(AttributeError):
            delattr(function, name)
    assert (function.address, function.derivative_address) == (1, 2)
    assert function.user_data_address == 3


def test_equality_is_identity():
    one, other = (ScoreFunction(1, dtype="float32") for _ in range(2))
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2
    assert copy.copy(one) is one
    assert copy.deepcopy([one])[0] is one


def test_score_functions_are_not_pickled():
    function = ScoreFunction(1, dtype="float32")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=says("ScoreFunction", "addresses", "another process")):
            pickle.dumps(function, protocol)


def test_representation():
    assert repr(ScoreFunction(4096, dtype="f4")) == "ScoreFunction(0x1000, dtype='float32')"
    shown = repr(ScoreFunction(4096, 8192, 256, dtype="f8"))
    assert shown == "ScoreFunction(0x1000, derivative=0x2000, user_data=0x100, dtype='float64')"
    again = eval(shown)
    assert (again.address, again.derivative_address, again.user_data_address) == (4096, 8192, 256)


def test_the_types_of_other_libraries():
    assert ScoreFunction.c_type() is ScoreFunction.c_type(np.float32)
    assert list(ScoreFunction.c_type("float32")._argtypes_) == CTYPES
    assert ScoreFunction.c_type("float64")._argtypes_[0] is POINTER(c_double)
    assert ScoreFunction.numba_signature() == (
        "void(CPointer(float32), int64, int64, int64, CPointer(int64), int64, int64, int64, "
        "voidptr)"
    )
    assert ScoreFunction.numba_signature(np.float64) == (
        ScoreFunction.numba_signature().replace("float32", "float64")
    )


def test_the_class_is_public():
    assert ScoreFunction.__module__ == "regard"


def test_no_other_library_is_imported(output_of):
    script = """
        import sys
        import regard
        function = regard.ScoreFunction.c_type("float32")(lambda *arguments: None)
        regard.ScoreFunction(function, user_data=regard.ScoreFunction.c_type("float64")(1))
        regard.ScoreFunction.numba_signature("float64")
        print([name for name in ("numba", "cffi", "_cffi_backend", "scipy", "Cython")
               if name in sys.modules])
        """
    assert output_of(script) == "[]"
