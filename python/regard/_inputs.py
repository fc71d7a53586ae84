"""What callers pass, checked and converted: arrays that the kernels can read, lengths, numbers."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FloatArray = np.ndarray[Any, np.dtype[np.float32]] | np.ndarray[Any, np.dtype[np.float64]]

_COMPUTE_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


def as_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return an array, or raise an error that names the argument."""
    if value is None:
        raise TypeError(f"{name} must be an array, got None")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must be a plain array, got a masked array, whose mask would be ignored; "
            "pass .filled(...) and a mask argument"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array or a regular nested list: {error}") from None


def _compute_type(name: str, array: NDArray[Any]) -> np.dtype[Any]:
    native = array.dtype.newbyteorder("=")
    if native in _COMPUTE_TYPES:
        return native
    if array.dtype.kind in "biu":
        return np.dtype(np.float64)
    raise TypeError(f"{name} must be an array of float32 or float64, got {array.dtype}")


def as_readable(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `array` itself, or a copy where the type, alignment or strides forbid reading it."""
    readable = np.asarray(array, dtype=dtype)
    strides_fit = all(stride % dtype.itemsize == 0 for stride in readable.strides)
    if readable.flags.aligned and strides_fit:
        return readable
    return readable.copy()


def as_float_arrays(**arguments: ArrayLike) -> tuple[NDArray[Any], ...]:
    """Convert named arguments to arrays of their common type, float32 or float64.

    Integers, bools and lists of them become float64, as in NumPy; other byte orders become native.
    Arrays that are fine already are returned as they are.
    """
    arrays = {name: as_array(name, value) for name, value in arguments.items()}
    dtype = np.result_type(*(_compute_type(name, array) for name, array in arrays.items()))
    return tuple(as_readable(array, dtype) for array in arrays.values())


def as_mask(mask: ArrayLike | None) -> NDArray[Any] | None:
    """Convert a mask to a bool, float32 or float64 array, or raise TypeError."""
    if mask is None:
        return None
    array = as_array("mask", mask)
    if array.dtype.kind == "b":
        return as_readable(array, np.dtype(np.bool_))
    if array.dtype.name in ("float16", "bfloat16"):
        return array.astype(np.float32)
    native = array.dtype.newbyteorder("=")
    if native in _COMPUTE_TYPES:
        return as_readable(array, native)
    if array.dtype.kind in "iu":
        raise TypeError(
            f"mask must be bool (True = may attend) or float (added to the scores), got "
            f"{array.dtype}; use mask.astype(bool) if 1 means may attend, or "
            f"mask.astype(float) if it is to be added"
        )
    raise TypeError(
        f"mask must be an array of bool (True = may attend) or of float (added to the scores), "
        f"got {array.dtype}"
    )


def integers(
    name: str, value: ArrayLike, wanted: str = "an int or an integer array"
) -> NDArray[Any]:
    """Return an array of integers, or raise an error that names the argument and what is wanted."""
    array = np.array(None) if value is None else as_array(name, value)
    if array.size == 0 and isinstance(value, list | tuple):
        return array.astype(np.int64)  # NumPy's type for no numbers is float64
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind == "O":
        # NumPy has no type for Python's integers beyond 64 bits, and leaves them as objects.
        numbers = list(array.flat) if all(type(each) is int for each in array.flat) else []
        beyond = [number for number in numbers if not -(2**63) <= number < 2**63]
        if beyond:
            raise ValueError(f"{name} must fit in 64 bits, got {beyond[0]}")
        if array.ndim == 0:
            raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    raise TypeError(f"{name} must be {wanted}, got {array.dtype}")


def count(name: str, value: SupportsIndex, minimum: int = 0) -> int:
    """Return a length as an int, or raise TypeError or ValueError naming it."""
    # bool has __index__; a length of True is a slip.
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def real_number(name: str, value: SupportsFloat) -> float:
    """Return a real number as a float, inf for an int that no float holds, or raise TypeError."""
    is_real = isinstance(value, int | float | np.integer | np.floating) or _is_foreign_real(value)
    if not is_real or isinstance(value, bool):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_foreign_real(value: object) -> bool:
    """Tell whether this is a scalar of bfloat16 or of another real type that is not NumPy's own."""
    if not isinstance(value, np.generic) or value.dtype.isbuiltin != 2:
        return False
    return np.can_cast(value.dtype, np.float64)


def flag(name: str, value: bool) -> bool:
    """Return a bool, or raise TypeError: what is merely true may be a slip."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return bool(value)
