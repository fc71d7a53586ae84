"""The types that arrays may be stored in, and the types that their arithmetic uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._inputs import as_array, as_readable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    DType = np.dtype[Any]

_WIDTHS = ("float16", "bfloat16", "float32", "float64")


def stored(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return `value` as an array of one of the storage types.

    These are float16, bfloat16 (of ml_dtypes, known by its name), float32 and float64. Integers,
    bools and lists of them become float64, as in NumPy; other byte orders become native.
    """
    array = as_array(name, value)
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    if array.dtype.name not in _WIDTHS:
        raise TypeError(
            f"{name} must be an array of float16, bfloat16, float32 or float64, got {array.dtype}"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_stored_arrays(**arguments: ArrayLike) -> tuple[NDArray[Any], ...]:
    """Convert named arguments to arrays that attention reads, each of its own storage type.

    Arrays that are fine already are returned as they are.
    """
    arrays = (stored(name, value) for name, value in arguments.items())
    return tuple(as_readable(array, array.dtype) for array in arrays)


def result_type(dtypes: Iterable[DType]) -> DType:
    """Return the type that holds all of `dtypes`: NumPy's, and float32 for float16 and bfloat16.

    NumPy itself refuses to mix these two.
    """
    distinct = set(dtypes)
    names = {dtype.name for dtype in distinct}
    if {"float16", "bfloat16"} <= names:
        distinct.add(np.dtype(np.float32))
        distinct = {dtype for dtype in distinct if dtype.itemsize > 2}
    return np.result_type(*distinct)


def compute_type(*dtypes: DType) -> DType:
    """Return float64 where any of `dtypes` is that, else float32."""
    return np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)


def floating(name: str, dtype: DTypeLike) -> DType:
    """Return a floating-point dtype, or raise TypeError."""
    wanted = np.dtype(dtype)
    if wanted.kind != "f" and wanted.name != "bfloat16":
        raise TypeError(f"{name} must be floating-point, got {wanted}")
    return wanted
