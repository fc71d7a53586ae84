"""Checks of the names and arrays of a state before anything is loaded from it."""

from __future__ import annotations

import sys
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, is_floating
from regard._arguments.numbers import listed
from regard._weights.quantized import QuantizedWeight

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray


def check_names(wanted: Iterable[str], given: Iterable[str]) -> None:
    """Raise a ValueError that lists the differences unless both contain the same names."""
    wanted, given = list(wanted), list(given)
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        raise ValueError(
            f"state must have the keys {listed(wanted)}, "
            f"got missing: {listed(missing)}, unexpected: {listed(unexpected)}"
        )


def check_arrays(
    shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, Any], dtype: np.dtype[Any]
) -> dict[str, FloatArray]:
    """Return copies of the arrays named in `shapes`, in `dtype`.

    Raise TypeError for an array that is not floating-point, and ValueError for wrong shapes.
    """
    arrays = {name: _as_array(name, state[name]) for name in shapes}
    for name, array in arrays.items():
        if not is_floating(array.dtype):
            raise TypeError(f"{name} must be floating-point, got {array.dtype}")
    wrong = [
        f"{name} must have shape {shape}, got {arrays[name].shape}"
        for name, shape in shapes.items()
        if arrays[name].shape != shape
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    return {name: array.astype(dtype) for name, array in arrays.items()}


def _as_array(name: str, value: ArrayLike | QuantizedWeight) -> NDArray[Any]:
    if isinstance(value, QuantizedWeight):
        return value.dequantize()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = _readable_tensor(name, value)
    return as_array(name, value)


def _readable_tensor(name: str, tensor: Any) -> Any:
    """Return a PyTorch tensor that NumPy can read, without gradients, or raise TypeError."""
    dtype = str(tensor.dtype)
    if tensor.is_meta:
        raise TypeError(
            f"{name} must have numbers, got a tensor on the meta device: load the model first"
        )
    if "float8" in dtype or "float4" in dtype:
        raise TypeError(
            f"{name} must be a tensor of at least 16 bits, got {dtype}: pass tensor.float() "
            "multiplied by the scales that belong to it"
        )
    return tensor.detach().float() if dtype == "torch.bfloat16" else tensor.detach()


def can_hold(array: Any, other: FloatArray) -> bool:
    """Return whether `other` can be copied into `array` without a change."""
    return (
        isinstance(array, np.ndarray)
        and array.flags.writeable
        and array.shape == other.shape
        and array.dtype == other.dtype
    )


def overwrite(arrays: Collection[FloatArray], others: Collection[FloatArray]) -> None:
    """Copy `others` into `arrays` of the same shapes and dtype, all of them even after Ctrl-C.

    Python checks for signals between its own instructions, and there are none between these copies.
    Neither argument may be a generator.
    """
    deque(map(np.ndarray.__setitem__, arrays, repeat(...), others), maxlen=0)
