"""Top-level calls for arrays on a device, and for NumPy arrays with ``device="cuda"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_stored_arrays, check_out, converted, shares_memory
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.option_table import OPTIONS
from regard._arguments.options import CudaOptions, names_of
from regard.cuda._device_array import DeviceArray, to_device
from regard.cuda._elements import dense_strides
from regard.cuda._problem import NO_SPARSE_MASK, DeviceCall
from regard.cuda._status import check_available
from regard.cuda._streams import PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def attend_on_device(
    name: str, arrays: tuple[Any, Any, Any], starts: tuple[Any, ...], mask: Any, options: Any
) -> Any:
    """Compute a top-level call with arrays on a device."""
    call = DeviceCall(name, arrays, _without_defaults(options), None)
    return call.ragged(mask, *starts) if starts else call.dense(mask)


def attend_from_host(
    name: str, arrays: tuple[Any, Any, Any], starts: tuple[Any, ...], mask: Any, options: Any
) -> Any:
    """Compute a top-level call with NumPy arrays on a GPU, and return NumPy arrays."""
    asked = _without_defaults(options)
    out = asked.pop("out", None)
    native = as_stored_arrays(query=arrays[0], key=arrays[1], value=arrays[2])
    for array_name, array in zip(("query", "key", "value"), native, strict=True):
        if array.dtype == np.float64:
            raise TypeError(
                f"{array_name} must be an array of float16, bfloat16 or float32 for "
                'device="cuda", got float64: convert it to float32, or compute it on the CPU'
            )
    masks = Masks.of(mask)
    if is_sparse(masks.shown):
        raise TypeError(NO_SPARSE_MASK)
    if out is not None:
        _check_output(out, native, masks)
    check_available()
    query, key, value = (_Broadcast.of(array) for array in native)
    on_device = masks.map(lambda part: _Broadcast.of(_single(part))).argument
    call = DeviceCall(name, (query, key, value), asked, PER_THREAD)
    if out is not None:
        call.wanted_shape = out.shape
    results = call.ragged(on_device, *starts) if starts else call.dense(on_device)
    if not isinstance(results, tuple):
        return _delivered(results, out)
    return _delivered(results[0], out), results[1].to_numpy()


class _Broadcast(DeviceArray):
    """A device copy of a host array, with broadcast axes stored only once."""

    __slots__ = ("steps",)
    steps: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[Any]) -> _Broadcast:
        """Copy an array to the device without repeating broadcast elements."""
        axes = zip(array.shape, array.strides, strict=True)
        repeats = [array.size > 0 and n > 1 and step == 0 for n, step in axes]
        once = array[tuple(slice(1) if each else slice(None) for each in repeats)]
        copied = to_device(once, stream=PER_THREAD)
        result = cls(copied.buffer, copied.element, array.shape)
        steps = zip(repeats, dense_strides(once.shape), strict=True)
        result.steps = tuple(0 if repeated else step for repeated, step in steps)
        return result

    def strides_in_elements(self) -> tuple[int, ...]:
        return self.steps


def _single(mask: NDArray[Any]) -> NDArray[Any]:
    """Convert a float64 mask to float32, since the kernels do not support float64."""
    if mask.dtype != np.float64:
        return mask
    with np.errstate(over="ignore"):
        return converted(mask, np.float32)


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


def _check_output(out: Any, arrays: tuple[NDArray[Any], ...], masks: Masks) -> None:
    """Raise TypeError or ValueError if results cannot be written to a host array."""
    check_out("out", out, arrays[0].dtype)
    named = [
        *zip(("query", "key", "value"), arrays, strict=True),
        *(("mask", part) for part in masks.arrays),
    ]
    for name, array in named:
        if shares_memory(out, array):
            raise ValueError(
                f"out must not overlap {name}: it would be overwritten before it is read; "
                "pass another array"
            )


def _delivered(result: DeviceArray, out: Any) -> NDArray[Any]:
    array = result.to_numpy()
    if out is None:
        return array
    np.copyto(out, array)
    given: NDArray[Any] = out
    return given
