"""Top-level calls for arrays on a device, and for NumPy arrays with ``device="cuda"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_stored_arrays, check_out, converted
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import CudaOptions, names_of
from regard.cuda._device_array import DeviceArray, to_device
from regard.cuda._problem import NO_SPARSE_MASK, attend
from regard.cuda._results import refuse_overlaps
from regard.cuda._status import check_available
from regard.cuda._streams import PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_ARRAYS = ("query", "key", "value")


def attend_on_device(
    name: str, arrays: tuple[Any, Any, Any], starts: tuple[Any, ...], mask: Any, options: Any
) -> Any:
    """Compute a top-level call with arrays on a device."""
    return attend(name, arrays, starts, mask, _without_defaults(options))


def attend_from_host(
    name: str, arrays: tuple[Any, Any, Any], starts: tuple[Any, ...], mask: Any, options: Any
) -> Any:
    """Compute a top-level call with NumPy arrays on a GPU, and return NumPy arrays."""
    asked = _without_defaults(options)
    out = asked.pop("out", None)
    native = as_stored_arrays(query=arrays[0], key=arrays[1], value=arrays[2])
    for array_name, array in zip(_ARRAYS, native, strict=True):
        if array.dtype == np.float64:
            raise TypeError(
                f"{array_name} must be an array of float16, bfloat16 or float32 for "
                'device="cuda", got float64: convert it to float32, or compute it on the CPU'
            )
    masks = Masks.of(mask)
    if is_sparse(masks.shown):
        raise TypeError(NO_SPARSE_MASK)
    if out is not None:
        check_out("out", out, native[0].dtype)
        named = (*zip(_ARRAYS, native, strict=True), *(("mask", part) for part in masks.arrays))
        refuse_overlaps(out, named)
    check_available()
    query, key, value = map(_uploaded, native)
    on_device = masks.map(_uploaded).argument
    shape = None if out is None else out.shape
    results = attend(name, (query, key, value), starts, on_device, asked, PER_THREAD, shape)
    output, *lse = results if isinstance(results, tuple) else (results,)
    host = output.to_numpy()
    if out is not None:
        np.copyto(out, host)
        host = out
    return (host, lse[0].to_numpy()) if lse else host


def _uploaded(array: NDArray[Any]) -> DeviceArray:
    """Copy an array to the device, float64 as float32, without repeating broadcast elements."""
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            array = converted(array, np.float32)
    axes = zip(array.shape, array.strides, strict=True)
    repeats = [array.size > 0 and n > 1 and step == 0 for n, step in axes]
    once = to_device(
        array[tuple(slice(1) if each else slice(None) for each in repeats)], stream=PER_THREAD
    )
    steps = zip(repeats, once.steps, strict=True)
    strides = tuple(0 if repeated else step for repeated, step in steps)
    return DeviceArray(once.buffer, once.element, array.shape, strides)


def _without_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Remove CPU-only options that have their default values."""
    taken = names_of(CudaOptions)
    return {
        name: value
        for name, value in options.items()
        if name != "device"
        and (name in taken or name not in OPTIONS or not _is_default(value, OPTIONS[name].default))
    }


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (np.ndim(value) == 0 and bool(value == default))
