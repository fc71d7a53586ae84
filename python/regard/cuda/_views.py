"""Views of other libraries' arrays, as addresses, shapes and strides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard._arguments.foreign import CUDA, CUDA_MANAGED, dlpack_device
from regard.cuda._device_array import ITEM_BYTES, DeviceArray, dense_strides
from regard.cuda._status import module
from regard.cuda._streams import library_of, normal

_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


@dataclass(slots=True)
class View:
    """The memory of an array. Strides are in elements; `keeps` owns the memory."""

    name: str
    address: int
    device: int
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    array: Any
    keeps: Any = None
    is_read_only: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether the array is contiguous."""
        axes = zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        return all(n == 1 or step == dense for n, step, dense in axes)


def view_of(name: str, array: Any, stream: int) -> View:
    """Return a view of an array on a CUDA device, ready for work on a stream.

    Raises TypeError or ValueError, or RuntimeError if CUDA reports an error.
    """
    view: View | None
    if isinstance(array, DeviceArray):
        address, device = array.buffer.address, array.device
        array.buffer.order(stream)
        view = View(name, address, device, array.element, array.shape, array.steps, array)
    else:
        view = _by_dlpack(name, array, stream) or _by_interface(name, array, stream)
    if view is None:
        raise TypeError(_not_on_device(name, array))
    if view.element not in ITEM_BYTES:
        raise TypeError(
            f"{name} must be an array of float16, bfloat16 or float32, got {view.element}"
        )
    return view


def _by_dlpack(name: str, array: Any, stream: int) -> View | None:
    device = dlpack_device(array)
    if device is None or device[0] not in (CUDA, CUDA_MANAGED):
        return None
    if getattr(array, "requires_grad", False) is True:
        raise TypeError(
            f"{name} must be an array without a gradient, got one that requires it: "
            "regard.cuda computes only the forward pass; pass tensor.detach()"
        )
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a library from before DLPack 1.0
        capsule = array.__dlpack__(stream=stream)
    tensor = module().ImportedTensor(capsule)
    kind, number = tensor.device
    if kind not in (CUDA, CUDA_MANAGED):
        raise ValueError(
            f"{name} is on device {device} by its __dlpack_device__, but its __dlpack__ returns "
            f"memory of device {(kind, number)}"
        )
    code, bits, lanes = tensor.element
    element = "bool" if code == 6 else f"{_DLPACK_KINDS.get(code, f'DLPack type {code} of ')}{bits}"
    if lanes != 1:
        raise TypeError(f"{name} must be an array of numbers, got vectors of {lanes} {element}")
    shape = tensor.shape
    strides = dense_strides(shape) if tensor.strides is None else tensor.strides
    read_only = tensor.is_read_only
    return View(name, tensor.address, number, element, shape, strides, array, tensor, read_only)


def _by_interface(name: str, array: Any, stream: int) -> View | None:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return None
    try:
        address, is_read_only = interface["data"]
        shape = tuple(int(size) for size in interface["shape"])
        dtype = np.dtype(interface["typestr"])
    except (KeyError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name} has a __cuda_array_interface__ that cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from None
    if interface.get("mask") is not None:
        raise TypeError(f"{name} must be a plain array, got one with a mask")
    if dtype.kind == "V":
        raise TypeError(
            f"{name} must be an array of float16, bfloat16 or float32, got {dtype.str} by "
            "__cuda_array_interface__, which has no bfloat16: pass an array with __dlpack__"
        )
    if not dtype.isnative:
        raise TypeError(f"{name} must be in the byte order of the machine, got {dtype.str}")
    steps = interface.get("strides")
    if steps is None:
        strides = dense_strides(shape)
    else:
        if len(steps) != len(shape) or any(step % dtype.itemsize for step in steps):
            raise ValueError(
                f"{name} must have strides of a whole number of elements, one for each of its "
                f"{len(shape)} axes, got {tuple(steps)} bytes for {dtype}"
            )
        strides = tuple(int(step) // dtype.itemsize for step in steps)
    cuda = module()
    device = cuda.current_device() if math.prod(shape) == 0 else cuda.device_of(address)
    if device is None:
        raise ValueError(
            f"{name} must be in the memory of a CUDA device, and its address {address:#x} is not"
        )
    producer = interface.get("stream")
    if producer is not None:
        if producer == 0:
            raise ValueError(
                f"{name} has a __cuda_array_interface__ with the stream 0, which means no stream: "
                "1 is the legacy default stream, 2 is the per-thread default stream"
            )
        if normal(int(producer)) != stream:
            cuda.order_streams(device, int(producer), stream)
    read_only = bool(is_read_only)
    return View(name, int(address), device, dtype.name, shape, strides, array, None, read_only)


def _not_on_device(name: str, array: Any) -> str:
    wanted = f"{name} must be an array on a CUDA device"
    if library_of(array) == "torch":
        return f"{wanted}, got a tensor on {array.device}; pass tensor.cuda()"
    if isinstance(array, np.ndarray):
        return (
            f"{wanted}, got a NumPy array; pass regard.cuda.to_device(array), or only NumPy "
            'arrays to regard.scaled_dot_product_attention(..., device="cuda")'
        )
    return f"{wanted}, with __dlpack__ or __cuda_array_interface__, got {type(array).__name__}"
