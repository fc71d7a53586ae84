"""The steps that XLA runs: the NumPy calls, with the axes that `jax.vmap` adds.

XLA calls them with its buffers, which they read and write in place. `jax.pure_callback` would copy
both, and creates JAX arrays within the callback, which can deadlock waiting for a thread that the
callback itself occupies. A step must not call JAX.
"""

from __future__ import annotations

import atexit
import ctypes
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from regard._arguments.masks import Masks
from regard._arguments.option_table import ARRAY_OPTIONS, DIFFERENTIABLE, OPTIONS
from regard._attention.dense import scaled_dot_product_attention
from regard._gradients.backward import AttentionGradients, scaled_dot_product_attention_backward
from regard._gradients.jvp import scaled_dot_product_attention_jvp
from regard.masks._rows import SparseRows
from regard.masks._sparse import of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Arrays = dict[str, Any]
    Options = dict[str, Any]

# The two kinds of masks have separate names, since a call may have both.
DIFFERENTIABLE_INPUTS = ("query", "key", "value", "float_mask", *DIFFERENTIABLE)
# The array options without a batch axis.
_OF_ALL_ENTRIES = {
    "dropout_seed",
    *(name for name in ARRAY_OPTIONS if "batch" not in OPTIONS[name].axes),
}
SPARSE_NAMES = ("mask_starts", "mask_spans", "mask_bits")
# FE_DFL_ENV of C's <fenv.h>, and a size larger than any fenv_t.
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)
_ROOM_FOR_ENVIRONMENT = 256
_libm = ctypes.PyDLL(None)


class Result(NamedTuple):
    """The shape and type of an array that a step returns."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class TracedCall(NamedTuple):
    """The properties of a call that are known when a program is traced."""

    axes: int
    """The number of axes of query, key and value, without the axes that `jax.vmap` adds."""
    options: tuple[tuple[str, Any], ...]
    output: Result
    lse: Result
    return_lse: bool
    is_residual: bool = False
    """Whether lse is kept for gradients only, and finite in fully masked rows."""


@dataclass(frozen=True)
class Step:
    """A function of named arrays that a program calls: attention, or a derivative of it.

    JAX compiles equal steps once.
    """

    function: str
    """One of the names in `_FUNCTIONS`."""
    known: TracedCall
    names: tuple[str, ...]
    results: tuple[Result, ...]
    wanted: tuple[str, ...] = ()
    """The inputs with respect to which a derivative is computed."""
    mapped: tuple[int, ...] = ()
    """The sizes of the axes that `jax.vmap` adds before the axes of all arrays. An array may have
    axes of size 1 instead."""

    def types(self) -> list[Any]:
        """Return the types of the results."""
        return [
            jax.core.ShapedArray((*self.mapped, *shape), dtype) for shape, dtype in self.results
        ]

    def compute(self, *arrays: Any) -> list[Any]:
        """Compute with JAX arrays, now or when XLA runs."""
        types = self.types()
        if all(0 in each.shape for each in types):
            return [jnp.zeros(each.shape, each.dtype) for each in types]
        _finish_at_exit()
        return list(buffer_callback(self, types)(*arrays))

    def __call__(self, _: Any, results: Sequence[Any], *buffers: Any) -> None:
        """Fill the results of all mapped calls, with one call if their entries are independent."""
        results = [np.asarray(buffer) for buffer in results]
        given = {
            name: np.broadcast_to(array, self.mapped + array.shape[len(self.mapped) :])
            for name, array in zip(self.names, map(np.asarray, buffers), strict=True)
        }
        # These options cannot differ between batch entries, and dropout counts the entries.
        is_apart = not _OF_ALL_ENTRIES & (given.keys() | dict(self.known.options).keys())
        with _ieee_arithmetic():
            if not self.mapped or is_apart:
                self._fill(given, results)
                return
            for index in np.ndindex(*self.mapped):
                entry = {name: array[index] for name, array in given.items()}
                self._fill(entry, [result[index] for result in results])

    def _fill(self, given: Arrays, results: Sequence[Array]) -> None:
        options = dict(self.known.options)
        for name in ARRAY_OPTIONS:
            if name in given:
                options[name] = given.pop(name)
        if "dropout_seed" in given:
            options["dropout_seed"] = int(given.pop("dropout_seed"))
        shown, numbers = given.pop("bool_mask", None), options.pop("mask_numbers", None)
        if numbers is not None:
            shown = _sparse_of([given.pop(name) for name in SPARSE_NAMES], numbers)
        options["mask"] = Masks(shown, given.pop("float_mask", None)).argument
        if self.function == "backward":
            options["with_respect_to"] = self.wanted
        _FUNCTIONS[self.function](given, options, results)


def sparse_arrays(mask: Any) -> tuple[dict[str, Array], tuple[Any, ...]]:
    """Return the arrays of a sparse mask by name, and the numbers that `_sparse_of` needs.

    JAX has 64-bit integers only if configured to, so they are passed as pairs of 32-bit integers.
    """
    rows = mask._rows.distinct()
    starts, spans = (
        np.ascontiguousarray(array).view(np.int32) for array in (rows.starts, rows.spans)
    )
    arrays = dict(zip(SPARSE_NAMES, (starts, spans, rows.bits), strict=True))
    layout = rows.row_queries, rows.first_query, rows.first_key
    return arrays, (*rows.shape[-2:], *layout, mask._block)


def _sparse_of(arrays: Sequence[Array], numbers: Sequence[Any]) -> Any:
    """Return the mask of these arrays, which may have additional axes before their own.

    The additional axes of `starts` belong to the mask. The other arrays repeat along these axes.
    """
    starts, spans, bits = arrays
    q_len, kv_len, row_queries, first_query, first_key, block = numbers
    starts = starts.view(np.int64)
    spans = spans[(0,) * (spans.ndim - 2)].view(np.int64)
    bits = bits[(0,) * (bits.ndim - 3)]
    shape = (*starts.shape[:-1], q_len, kv_len)
    rows = SparseRows(starts, spans, bits, row_queries, first_query, first_key, shape)
    return of_rows(rows, block and tuple(block))


@contextmanager
def _ieee_arithmetic() -> Iterator[None]:
    """Enable subnormal numbers, which XLA's threads treat as zeros."""
    before = ctypes.create_string_buffer(_ROOM_FOR_ENVIRONMENT)
    _libm.fegetenv(before)
    _libm.fesetenv(_DEFAULT_ENVIRONMENT)
    try:
        yield
    finally:
        _libm.fesetenv(before)


@cache
def _finish_at_exit() -> None:
    atexit.register(_finish)


def _finish() -> None:
    """Wait for the programs of this thread, which need Python in order to return.

    XLA runs the programs that a thread starts in their order. Another reference keeps a client
    alive, because a destroyed client joins the threads of the programs of other threads, which may
    wait for Python.
    """
    nothing = np.zeros((), np.float32)
    with suppress(RuntimeError):  # JAX is configured without a CPU backend
        for device in jax.local_devices(backend="cpu"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(device.client))
            with jax.default_device(device):
                last = buffer_callback(_do_nothing, jax.ShapeDtypeStruct((), np.float32))
                jax.block_until_ready(last(nothing))


def _do_nothing(*_: Any) -> None:
    """Fill nothing."""


def _attend(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the output, and lse if it is among the results."""
    if len(results) == 1:
        scaled_dot_product_attention(**given, **options, out=results[0])
    else:
        options |= {"return_lse": True, "out": results[0]}
        _, results[1][...] = scaled_dot_product_attention(**given, **options)


def _attend_with_residual(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the output and a finite lse, because `jax.debug_infs` refuses any infinity."""
    _attend(given, options, results)
    lse = results[1]
    lse[np.isneginf(lse)] = np.finfo(lse.dtype).min


def _backward(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the gradients of the inputs that the option `with_respect_to` names."""
    lse = given["lse"]
    given["lse"] = np.where(lse == np.finfo(lse.dtype).min, lse.dtype.type(-np.inf), lse)
    names = [name.removeprefix("float_") for name in options.pop("with_respect_to")]
    out = AttentionGradients(**dict(zip(names, results, strict=True)))
    scaled_dot_product_attention_backward(**given, **options, with_respect_to=names, out=out)


def _along(given: Arrays, options: Options, results: Sequence[Array]) -> None:
    """Fill the derivative of the output along the given tangents, and of lse if wanted."""
    del given["output"], given["lse"]  # for its transpose
    tangents = {f"tangent_{name}": None for name in ("query", "key", "value")}
    arguments = {**tangents, **given, **options, "return_lse": True}
    _, along, _, of_lse = scaled_dot_product_attention_jvp(**arguments)
    for result, computed in zip(results, (along, of_lse), strict=False):
        result[...] = computed


_FUNCTIONS = {
    "attend": _attend,
    "attend_with_residual": _attend_with_residual,
    "backward": _backward,
    "jvp": _along,
}
