"""Distinguish arrays on a GPU from arrays that the CPU reads."""

from __future__ import annotations

from typing import Any

# DLPack's numbers for kinds of memory.
CUDA, CUDA_MANAGED = 2, 13


def dlpack_device(array: Any) -> tuple[int, int] | None:
    """Return the kind and number of an array's device, or None if it does not report them."""
    ask = getattr(array, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, number = ask()
    except (ValueError, BufferError, RuntimeError):  # DLPack has no number for the device
        return None
    return int(kind), int(number)


def is_on_cuda(array: Any) -> bool:
    """Return whether an object is an array in the memory of a CUDA device."""
    device = dlpack_device(array)
    if device is not None and device[0] in (CUDA, CUDA_MANAGED):
        return True
    return hasattr(array, "__cuda_array_interface__")
