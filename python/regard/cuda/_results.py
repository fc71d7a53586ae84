"""Result arrays, in the library of the query."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import refuse_overlap, repeats_an_element
from regard.cuda._device_array import ITEM_BYTES, DeviceArray, dense_strides
from regard.cuda._status import module
from regard.cuda._streams import library_of, normal
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def new_array(name: str, query: View, element: str, shape: tuple[int, ...], stream: int) -> View:
    """Return a view of a new array that is allocated in stream order."""
    library = library_of(query.array)
    array: Any
    if library == "torch":
        torch = sys.modules["torch"]
        with _torch_stream(torch, query.array, stream):
            array = torch.empty(shape, dtype=getattr(torch, element), device=query.array.device)
        address = array.data_ptr()
    elif library == "cupy":
        cupy = sys.modules["cupy"]
        dtype = query.array.dtype if element == query.element else element
        with cupy.cuda.Device(query.device), cupy.cuda.ExternalStream(stream):
            array = cupy.empty(shape, dtype=dtype)
        address = array.data.ptr
    else:
        size = math.prod(shape) * ITEM_BYTES[element]
        array = DeviceArray(module().Buffer(size, query.device, stream), element, shape)
        address = array.buffer.address
    return View(name, address, query.device, element, shape, dense_strides(shape), array)


def given_output(
    out: Any, query: View, shape: tuple[int, ...], inputs: Iterable[View], stream: int
) -> View:
    """Return a view of the caller's output array. Raises TypeError or ValueError."""
    view = view_of("out", out, stream)
    if view.element != query.element:
        raise TypeError(f"out must be an array of {query.element}, got {view.element}")
    if view.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {view.shape}")
    if view.is_read_only:
        raise ValueError("out must be writeable, got a read-only array")
    if repeats_an_element(view.shape, view.strides, 1):
        raise ValueError(
            f"out must have a separate element for every result, got strides {view.strides} "
            f"for shape {shape}"
        )
    others = ((each.name, np.asarray(_Addresses(each))) for each in inputs)
    refuse_overlaps(np.asarray(_Addresses(view)), others)
    return view


def refuse_overlaps(out: NDArray[Any], inputs: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Raise ValueError if `out` shares memory with an input, which are given by name."""
    for name, array in inputs:
        refuse_overlap(
            "out", out, name, array, "it would be overwritten before it is read; pass another array"
        )


def release(views: Iterable[View], stream: int) -> None:
    """Notify the owners of arrays that a stream uses them, so that memory is not reused early."""
    for view in views:
        if isinstance(view.array, DeviceArray):
            view.array.buffer.used_by(stream)
        elif library_of(view.array) == "torch":
            torch = sys.modules["torch"]
            current = torch.cuda.current_stream(view.array.device)
            if normal(current.cuda_stream) != stream:
                view.array.record_stream(_external(torch, view.array, stream))


def _torch_stream(torch: Any, array: Any, stream: int) -> contextlib.AbstractContextManager[Any]:
    if normal(torch.cuda.current_stream(array.device).cuda_stream) == stream:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(
        _external(torch, array, stream)
    )
    return context


def _external(torch: Any, array: Any, stream: int) -> Any:
    if stream == normal(torch.cuda.default_stream(array.device).cuda_stream):
        return torch.cuda.default_stream(array.device)
    return torch.cuda.ExternalStream(stream, device=array.device)


class _Addresses:
    """A device array as a NumPy array interface, used only to compare addresses."""

    def __init__(self, view: View) -> None:
        size = ITEM_BYTES[view.element]
        self.__array_interface__ = {
            "version": 3,
            "shape": view.shape,
            "typestr": f"|V{size}",
            "data": (view.address, True),
            "strides": tuple(step * size for step in view.strides),
        }
