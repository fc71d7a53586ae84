"""Tensors and NumPy arrays that share memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard._core import array_of_tensor
from regard._runtime.public import needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
# The types whose elements are in memory, so that a call may read them itself.
PLAIN = frozenset((Tensor, torch.nn.Parameter))
# Types that are not tensors. An isinstance check of their objects would cost a microsecond.
NO_TENSORS = frozenset((bool, int, float, str, tuple, list, type(None), np.ndarray))


def as_array(tensor: Tensor) -> Array:
    """Return an array that shares the memory of a CPU tensor."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    array = array_of_tensor(tensor, bfloat16() if tensor.dtype is torch.bfloat16 else None)
    if array is None:
        if tensor.numel() and not tensor.data_ptr():
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was resized "
                "to 0, as sharded parameters are between their uses"
            )
        array = tensor.detach().numpy()  # of another type, or not on the CPU, which is an error
    return array


def arrays_of(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return values with arrays in place of tensors, or None if a call may not read a tensor.

    It may read tensors that have elements in memory, and that no transform wraps.
    """
    arrays = {}
    for name, value in values.items():
        if type(value) in PLAIN:
            array = array_of_tensor(value, bfloat16() if value.dtype is torch.bfloat16 else None)
            if array is None:
                return None
            value = as_array(value) if value.is_neg() else array
        elif type(value) not in NO_TENSORS and isinstance(value, Tensor):
            return None
        arrays[name] = value
    return arrays


def as_tensor(array: Array) -> Tensor:
    """Return a tensor that shares the memory of a new array."""
    if array.dtype.kind == "V":  # bfloat16
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@cache
def bfloat16() -> np.dtype[Any]:
    """Return the NumPy dtype for bfloat16, which an optional package defines."""
    types = needed("ml_dtypes", "attention over bfloat16 tensors", "torch")
    dtype: np.dtype[Any] = np.dtype(types.bfloat16)
    return dtype


def empty_output(query: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialized output in the memory layout of the query.

    If its shape differs from the query's, only two layouts are distinguished: contiguous, and the
    second and third axes from the end exchanged in memory.
    """
    if shape == query.shape:
        return torch.empty_like(query)
    if query.ndim > 2 and query.stride(-3) < query.stride(-2):
        *batch, second, third, value_dim = shape
        return query.new_empty((*batch, third, second, value_dim)).transpose(-3, -2)
    return query.new_empty(shape)


def dense_shape(
    of_query: tuple[int, ...], of_key: tuple[int, ...], of_value: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of the output, or raise ValueError if batch axes do not broadcast."""
    if of_key == of_value and of_query[:-2] == of_key[:-2]:
        return of_query if of_query[-1] == of_value[-1] else (*of_query[:-1], of_value[-1])
    last = (of_query[-2], of_value[-1])
    if max(len(of_query), len(of_key), len(of_value)) == 2:
        return last
    try:
        batch = torch.broadcast_shapes(of_query[:-3], of_key[:-3], of_value[:-3])
    except RuntimeError:
        raise ValueError(
            f"the axes before heads must broadcast: query has {tuple(of_query[:-3])}, "
            f"key {tuple(of_key[:-3])}, value {tuple(of_value[:-3])}"
        ) from None
    return (*batch, of_query[-3] if len(of_query) > 2 else 1, *last)
