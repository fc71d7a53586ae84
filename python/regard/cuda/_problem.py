"""A call on a GPU, from the caller's arrays and options to the results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.foreign import is_on_cuda
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, is_sparse, parts_of
from regard._arguments.option_table import PER_ENTRY
from regard._arguments.options import CudaOptions, names_of
from regard._arguments.positions import Positions
from regard.cuda._check import MOST_POSITION, check
from regard.cuda._device_array import copied
from regard.cuda._launches import OF_HEADS, Launches
from regard.cuda._results import given_output, new_array, release
from regard.cuda._status import check_available, check_device
from regard.cuda._streams import stream_of
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._attention.check import Sizes

_ARRAYS = ("query", "key", "value")
_STARTS = ("query_starts", "key_starts")
_SIZES = ("heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim")
_COMPUTED = ("float16", "bfloat16", "float32")
_FLOAT64 = ", which GPUs compute slowly: convert it to float32, or compute it on the CPU"
NO_SPARSE_MASK = (
    "mask must be an array on a GPU, got a sparse mask, which is for the CPU: pass its to_dense() "
    "if that is small"
)


def attend(
    name: str,
    arrays: tuple[Any, Any, Any],
    starts: tuple[Any, ...],
    mask: Any,
    options: Mapping[str, Any],
    stream: Any = None,
    wanted_shape: tuple[int, ...] | None = None,
) -> Any:
    """Compute a dense call, or a ragged one if `starts` are given, and return its results.

    An output that the caller fills has a `wanted_shape`.
    """
    check_options(f"regard.cuda.{name}", options, names_of(CudaOptions))
    check_available()
    used = _UsedArrays(stream_of(stream, arrays[0]))
    query, key, value = _inputs(arrays, used)
    check_device(query.device)
    options = {
        name: _numbers_on_device(name, given, used)
        if name in (*PER_ENTRY, *OF_HEADS) and is_on_cuda(given)
        else given
        for name, given in options.items()
    }
    masks = _masks(mask, used)
    named_starts = dict(zip(_STARTS, starts, strict=False))
    sizes, rows = check((query, key, value), masks, options, named_starts)
    shape = (*rows, sizes.value_dim)
    if wanted_shape not in (None, shape):
        raise ValueError(f"out must have shape {shape}, got {wanted_shape}")

    launches = Launches(sizes.batch, is_packed=bool(starts))
    problem = launches.problem
    problem.element = query.element
    _set_options(problem, options, sizes)
    for start, given in named_starts.items():
        setattr(problem, start, used.copy(start, np.array(given, np.int32)).address)
    _add_numbers(launches, options, sizes, used)
    if options.get("out") is None:
        output = new_array("output", query, query.element, shape, used.stream)
    else:
        output = given_output(options["out"], query, shape, used.views, used.stream)
    for name, view in zip((*_ARRAYS, "output"), (query, key, value, used.add(output)), strict=True):
        launches.add_rows(name, view)
    lse = None
    if options.get("return_lse"):
        lse = used.add(new_array("lse", query, "float32", rows, used.stream))
        launches.add_lse(lse)
    for part in masks.arrays:
        launches.add_mask("mask" if part.element == "bool" else "bias", part)
    if masks.bias is not None:
        problem.bias_element = masks.bias.element
    try:
        if 0 not in rows:
            launches.run(query.device, used.stream)
    finally:  # some kernels may have been launched
        release(used.views, used.stream)
    return output.array if lse is None else (output.array, lse.array)


class _UsedArrays:
    """The arrays that the kernels of a call use, on one device, in the order of a stream."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.views: list[View] = []

    def add(self, view: View) -> View:
        """Add an array, or raise ValueError if it is not on the device of the first array."""
        device = self.views[0].device if self.views else view.device
        if view.device != device:
            raise ValueError(
                f"{view.name} must be on the device of query, {device}, got device {view.device}"
            )
        self.views.append(view)
        return view

    def copy(self, name: str, array: NDArray[Any]) -> View:
        """Add a copy of a host array."""
        on_device = copied(array, self.views[0].device, self.stream)
        return self.add(view_of(name, on_device, self.stream))


def _inputs(arrays: tuple[Any, Any, Any], used: _UsedArrays) -> list[View]:
    """Return views of query, key and value, or raise TypeError or ValueError."""
    views = [view_of(name, x, used.stream) for name, x in zip(_ARRAYS, arrays, strict=True)]
    element = views[0].element
    for view in views:
        if view.element not in _COMPUTED:
            advice = _FLOAT64 if view.element == "float64" else ""
            raise TypeError(
                f"{view.name} must be an array of float16, bfloat16 or float32, got "
                f"{view.element}{advice}"
            )
        if view.element != element:
            raise TypeError(
                "query, key and value must be of one type on a GPU, got "
                f"{element} and {view.element} of {view.name}: convert one of them"
            )
        used.add(view)
        if view.shape and view.shape[-1] > 1 and view.strides[-1] != 1 and 0 not in view.shape:
            raise ValueError(
                f"{view.name} must have a contiguous last axis on a GPU, got a stride of "
                f"{view.strides[-1]} elements: pass a contiguous copy"
            )
    return views


def _masks(mask: Any, used: _UsedArrays) -> Masks:
    """Return views of the masks: of None, an array, or a pair (bool, float) of arrays."""
    if any(map(is_sparse, parts_of(mask))):
        raise TypeError(NO_SPARSE_MASK)
    parts = [view_of("mask", part, used.stream) for part in parts_of(mask)]
    masks = Masks.of_parts(parts, lambda part: part.element == "bool", lambda part: part.element)
    for part in masks.arrays:
        if part.element not in ("bool", *_COMPUTED):
            raise TypeError(
                "mask must be bool (True = may attend) or float16, bfloat16 or float32 (added "
                f"to the scores) on a GPU, got {part.element}"
            )
        used.add(part)
    return masks


def _set_options(problem: Any, options: Mapping[str, Any], sizes: Sizes) -> None:
    """Set the sizes, and the options that are one value for the call."""
    for name in _SIZES:
        setattr(problem, name, getattr(sizes, name))
    scale, softcap = (_single(name, options.get(name)) for name in ("scale", "softcap"))
    problem.scale = 1 / math.sqrt(sizes.head_dim) if scale is None else float(scale)
    problem.softcap = 0.0 if softcap is None else float(softcap)
    sides = {name: each for name, each in options.items() if name in ("is_causal", "window")}
    positions = Positions.of(sides, sizes.q_len, sizes.kv_len)
    problem.window_left, problem.window_right = map(_side, (positions.left, positions.right))


def _single(name: str, value: Any) -> Any:
    """Return an option that is one number for all heads, or raise TypeError."""
    if np.ndim(value) or isinstance(value, list | tuple):
        raise TypeError(
            f"{name} must be one number on a GPU, got one for each head: multiply query by it, or "
            "compute on the CPU"
        )
    return value


def _side(side: int | None) -> int:
    """Return a side of the window as kernels read it: -1 if it is unlimited."""
    # No two positions are farther apart than this, and sums of larger sides would exceed 32 bits.
    return -1 if side is None or side > 2 * MOST_POSITION else side


def _numbers_on_device(name: str, value: Any, used: _UsedArrays) -> View:
    """Return a view of numbers on the device, one for each batch entry or head."""
    view = view_of(name, value, used.stream)
    element = "float32" if name in OF_HEADS else "int32"
    if view.element != element:
        raise TypeError(f"{name} on a device must be of {element}, got {view.element}")
    if name in PER_ENTRY and not view.is_dense:
        raise ValueError(f"{name} on a device must be contiguous")
    if name in OF_HEADS and view.shape and view.shape[-1] > 1 and view.strides[-1] != 1:
        raise ValueError(f"{name} on a device must be contiguous along heads")
    return used.add(view)


def _add_numbers(
    launches: Launches, options: Mapping[str, Any], sizes: Sizes, used: _UsedArrays
) -> None:
    """Add the options that are numbers for each batch entry or head."""
    # Without lengths, all keys exist.
    numbers = {"query_offset": 0, "key_lengths": sizes.kv_len}
    numbers |= {name: options[name] for name in PER_ENTRY if options.get(name) is not None}
    if isinstance(numbers["query_offset"], str):  # "end"
        launches.problem.query_offset_is_end = True
        numbers["query_offset"] = 0
    for name, value in numbers.items():
        found = _of_entries(name, value, sizes.batch, used)
        if isinstance(found, View):
            launches.add_numbers(name, found)
        else:
            setattr(launches.problem, name, (0, found))
    for name in OF_HEADS:
        given = options.get(name)
        if given is not None:
            if not isinstance(given, View):
                given = used.copy(name, _finite32(name, given))
            launches.add_numbers(name, given)


def _of_entries(name: str, given: Any, batch: tuple[int, ...], used: _UsedArrays) -> int | View:
    """Return one integer for all batch entries, or a view of one for each."""
    if type(given) is int and abs(given) <= MOST_POSITION:  # as in most calls
        return given
    if isinstance(given, View):
        if given.shape != batch:
            raise ValueError(
                f"{name} on a device must have one number for each batch entry or sequence, shape "
                f"{batch}, got shape {given.shape}"
            )
        return given
    numbers = np.asarray(given, np.int64)
    far = (numbers < -MOST_POSITION) | (numbers > MOST_POSITION)
    if far.any():
        raise ValueError(
            f"{name} must be from {-MOST_POSITION} to {MOST_POSITION} on a GPU, got "
            f"{numbers[far].flat[0]}"
        )
    if numbers.size == 0 or (numbers == numbers.flat[0]).all():
        return int(numbers.flat[0]) if numbers.size else 0
    return used.copy(name, np.broadcast_to(numbers, batch).astype(np.int32))


def _finite32(name: str, value: Any) -> NDArray[np.float32]:
    """Return numbers of heads in float32, or raise ValueError if one becomes infinite."""
    given = as_array(name, value)
    with np.errstate(over="ignore"):
        numbers = np.asarray(given, np.float32)
    infinite = np.isinf(numbers) & np.isfinite(given)
    if infinite.any():
        raise ValueError(f"{name} must be finite in float32, got {given[infinite].flat[0]}")
    return numbers
