"""The CUDA kernels on the CPU: build them with g++ against the emulation, and solve problems.

The emulated kernels run in a separate program (`cpp/tests/cuda/runner.cpp`), so that it may be
sanitized, and may crash, without affecting this process.
"""

import ctypes
import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

import error_limits

CUDA = Path(__file__).parent.parent.parent / "cpp/cuda"
TESTS = CUDA.parent / "tests/cuda"
ELEMENTS = {"float16": 0, "bfloat16": 1, "float32": 2}
FLAGS = ("-std=c++20", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
SANITIZERS = {
    "none": ("-O2",),
    "quick": ("-O0",),
    "address": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-fsanitize=thread"),
}
SIDE_LIMIT = 2**31 - 1  # positions have 32 bits, and no window of an array is wider


def dtype_of(element):
    """Return a NumPy dtype by the name of an element type."""
    return np.dtype(ml_dtypes.bfloat16 if element == "bfloat16" else element)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        *((f"{axis}_stride", ctypes.c_int64) for axis in ("batch", "head", "row", "column")),
    )


class PerEntry(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("all", ctypes.c_int32))


class AttentionProblem(ctypes.Structure):
    """`cpp/cuda/problem.hpp`, field by field."""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("batch", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("q_len", ctypes.c_int32),
        ("kv_len", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("query_starts", ctypes.c_void_p),
        ("key_starts", ctypes.c_void_p),
        ("query", Tensor),
        ("key", Tensor),
        ("value", Tensor),
        ("output", Tensor),
        ("lse", Tensor),
        ("mask", Tensor),
        ("bias", Tensor),
        ("bias_element", ctypes.c_int32),
        ("window_left", ctypes.c_int32),
        ("window_right", ctypes.c_int32),
        ("query_offset_is_end", ctypes.c_bool),
        ("query_offset", PerEntry),
        ("key_lengths", PerEntry),
        ("left_padding", PerEntry),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("alibi_slopes", ctypes.c_void_p),
        ("alibi_batch_stride", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
    )


class EmulationError(RuntimeError):
    """The program has ended, and the reason that it printed."""


class Solved(NamedTuple):
    output: np.ndarray
    lse: np.ndarray
    conflicts: int
    accesses: int
    products: int
    workspace_bytes: int


def build(sanitizer="none", *, sources=CUDA, kernels=True, main="runner.cpp"):
    """Compile a program once for all processes of the tests, and return its path.

    It is kept in the folder for temporary files, under the hash of everything that it is made of.
    """
    files = [*sorted(sources.glob("*.[ch]*")), *sorted(TESTS.glob("emulation/*")), TESTS / main]
    recipe = hashlib.sha256(repr((sanitizer, FLAGS, SANITIZERS)).encode())
    for file in files:
        recipe.update(file.name.encode() + file.read_bytes())
    place = _shared_folder() / recipe.hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    program = place / Path(main).stem
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            parts = [*(sorted(sources.glob("*.cu")) if kernels else ()), TESTS / main]
            _compile(place, program, sanitizer, parts, sources)
    return program


def _compile(place, program, sanitizer, parts, sources):
    compiler = [shutil.which("g++"), *FLAGS, *SANITIZERS[sanitizer], "-ffp-contract=off"]
    compiler += ["-I", TESTS / "emulation", "-I", sources]

    def to_object(source):
        made = place / f"{source.name}.o"
        subprocess.run([*compiler, "-x", "c++", "-c", source, "-o", made], check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(to_object, parts))
    linked = place / "linked"
    subprocess.run([*compiler, *objects, "-o", linked], check=True)
    os.replace(linked, program)


def patched(folder, element, changes=()):
    """Copy the kernels' sources with changes: (file, text that occurs once, other text).

    Only the kernels of one element type for values of up to 64 columns remain, so that they compile
    in seconds.
    """
    shutil.copytree(CUDA, folder, ignore=shutil.ignore_patterns("bindings", "CMakeLists.txt"))
    names = [name for name in ELEMENTS if name != element]
    for name in names:
        stub = f"Kernels {name}_kernels() {{ return {element}_kernels(); }}"
        text = f'#include "kernel_table.hpp"\nnamespace regard::cuda {{\n{stub}\n}}\n'
        (folder / f"{name}.cu").write_text(text, encoding="utf-8")
    changes = [
        ("kernel_rows.hpp", f"REGARD_FORWARD_ROWS(#type, Tile, {columns})", "")
        for columns in (128, 256)
    ] + [*changes]
    for name, before, after in changes:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{name} contains this {text.count(before)} times: {before}"
        (folder / name).write_text(text.replace(before, after), encoding="utf-8")
    return folder


def _shared_folder():
    """Return the folder in which programs are kept between runs of the tests."""
    return Path(tempfile.gettempdir()) / f"regard-cuda-emulation-{os.getuid()}"


class Runner:
    """A process that solves one problem after another."""

    def __init__(self, program):
        options = {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | options,
        )

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.errors.close()

    def solve(
        self, query, key, value, mask=None, *, seed=0, misaligned=0, rows_first=False, **options
    ):
        """Solve a problem whose arrays have four axes each; `mask` may be a pair.

        Arrays begin `misaligned` bytes after a multiple of 16. With `rows_first`,
        the axis of rows precedes the axis of heads in the memory of the output.
        """
        shape = (*query.shape[:3], value.shape[3])
        if rows_first:
            output = np.empty([shape[i] for i in (0, 2, 1, 3)], query.dtype)
            shown = output.transpose(0, 2, 1, 3)
        else:
            output = shown = np.empty(shape, query.dtype)
        lse = np.empty(shape[:3], np.float32)
        problem, arrays = _lay_out(query, key, value, mask, shown, lse, options)
        self.process.stdin.write(bytes(problem) + np.uint32(seed).tobytes())
        for number, array in enumerate(arrays):
            self.process.stdin.write(_packed(array, misaligned if number in range(2, 6) else 0))
        self.process.stdin.flush()
        error, conflicts, accesses, products, workspace_bytes = self._read(np.empty(5, np.int64))
        assert error == 0, f"CUDA error {error}"
        self._read(output)
        self._read(lse)
        return Solved(shown, lse, conflicts, accesses, products, workspace_bytes)

    def _read(self, array):
        raw = self.process.stdout.read(array.nbytes)
        if len(raw) != array.nbytes:
            code = self.process.wait()
            self.errors.seek(0)
            raise EmulationError(f"ended with {code}:\n{self.errors.read()[-4000:]}")
        array.reshape(-1).view(np.uint8)[...] = np.frombuffer(raw, np.uint8)
        return array


def _packed(array, misaligned):
    """Return an array's memory, from its first element to its last, in the runner's format."""
    if array is None:
        return np.array([-1, 0], np.int64).tobytes()
    reach = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    bytes_used = reach + array.itemsize if array.size else 0
    header = np.array([bytes_used, misaligned], np.int64).tobytes()
    return header + ctypes.string_at(array.ctypes.data, bytes_used)


def _tensor(array):
    if array is None:
        return Tensor()
    strides = [stride // array.itemsize for stride in array.strides]
    return Tensor(None, *strides, *[1] * (4 - len(strides)))


def _side(number):
    return -1 if number is None else min(int(number), SIDE_LIMIT)


def _lay_out(query, key, value, mask, output, lse, options):
    """Return the problem as the runner reads it, and the arrays that its pointers stand for."""
    options = {name: value for name, value in options.items() if value is not None}
    kv_len = key.shape[2]
    masks = dict.fromkeys(("mask", "bias"))
    for part in mask if isinstance(mask, tuple) else (mask,):
        if part is not None:
            shape = (*query.shape[:3], kv_len)
            masks["mask" if part.dtype == bool else "bias"] = np.broadcast_to(part, shape)
    window = list(options.pop("window", (None, None)))
    if options.pop("is_causal", False):
        window[1] = 0 if window[1] is None else min(window[1], 0)
    slopes = options.pop("alibi_slopes", None)
    sinks = options.pop("sinks", None)
    slopes, sinks = (None if x is None else np.asarray(x, np.float32) for x in (slopes, sinks))
    problem = AttentionProblem(
        element=ELEMENTS[query.dtype.name],
        batch=query.shape[0],
        heads=query.shape[1],
        kv_heads=key.shape[1],
        q_len=query.shape[2],
        kv_len=kv_len,
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        **{name: _tensor(array) for name, array in masks.items()},
        query=_tensor(query),
        key=_tensor(key),
        value=_tensor(value),
        output=_tensor(output),
        lse=_tensor(lse),
        bias_element=ELEMENTS["float32" if masks["bias"] is None else masks["bias"].dtype.name],
        window_left=_side(window[0]),
        window_right=_side(window[1]),
        scale=options.pop("scale", query.shape[3] ** -0.5),
        softcap=options.pop("softcap", 0),
        alibi_batch_stride=0 if slopes is None or slopes.ndim < 2 else slopes.strides[0] // 4,
    )
    numbers = []
    for name, default in (("query_offset", 0), ("key_lengths", kv_len), ("left_padding", 0)):
        given = options.pop(name, default)
        if isinstance(given, str):
            assert (name, given) == ("query_offset", "end")
            problem.query_offset_is_end, given = True, 0
        is_array = np.ndim(given) > 0
        setattr(problem, name, PerEntry(None, 0 if is_array else int(given)))
        numbers.append(np.ascontiguousarray(given, np.int32) if is_array else None)
    assert not options, options
    starts = [None] * 2  # of sequences in one array
    arrays = [query, key, value, output, lse]
    return problem, [*starts, *arrays, *masks.values(), *numbers, slopes, sinks]


def gpu_problem(case, dtype):
    """Return the problem of a case without what the GPU kernels do not have: some options, and some
    forms of options."""
    problem = case.build(dtype)
    options = problem.with_masks(lambda mask: mask if mask.dtype == bool else mask.astype(dtype))
    options.pop("distance_bias", None)
    if isinstance(options.get("mask"), tuple):
        options["mask"] = options["mask"][1]
    for name in ("scale", "softcap"):
        if np.ndim(options.get(name)):
            del options[name]
    if np.ndim(options.get("alibi_slopes")) > 1:
        options["alibi_slopes"] = options["alibi_slopes"].reshape(-1, problem.query.shape[-3])[0]
    return dataclasses.replace(problem, options=options)


def flattened(problem):
    """Return a problem of the tests' tables with one batch axis, and equivalent options."""
    batch = problem.batch
    count = int(np.prod(batch, dtype=int))
    options = dict(problem.options)

    def flat(array, last):
        array = array.reshape((1,) * (len(batch) + last - array.ndim) + array.shape)
        array = np.broadcast_to(array, batch + array.shape[len(batch) :])
        return np.ascontiguousarray(array).reshape(count, *array.shape[len(batch) :])

    query, key, value = (flat(x if x.ndim > 2 else x[None], 3) for x in problem.arrays)
    if options.get("mask") is not None:
        options["mask"] = flat(options["mask"], 3)
    for name in ("query_offset", "key_lengths", "left_padding"):
        if np.ndim(options.get(name, 0)):
            options[name] = np.broadcast_to(options[name], batch).reshape(count)
    return query, key, value, options


# The rounding of weights between 0 and 1, stored in 16 bits: relative above the second number,
# absolute below.
ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 0)}


def expected(query, key, value, mask=None, **options):
    """Return the oracle's result, and the error allowed around it.

    Kernels for 16 bits round weights to 16 bits before they multiply values. This may move a result
    by that rounding of each term, in addition to the errors of float32 arithmetic.
    """
    want = error_limits.expected(query, key, value, mask, **options)
    if query.dtype.name not in ROUNDING or want.exact.weights.size == 0:
        return want
    relative, absolute = ROUNDING[query.dtype.name]
    group = query.shape[1] // key.shape[1]
    values = np.abs(value.astype(np.float64)).repeat(group, axis=1)
    terms = np.asarray(want.exact.weights, np.float64) @ values
    moved = relative * terms.max(initial=0) + absolute * values.sum(axis=2).max(initial=0)
    limit = want.limit._replace(output=want.limit.output + moved)
    return want._replace(limit=limit)
