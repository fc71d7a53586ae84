"""Numbers and flags that callers pass, checked."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arrays import as_array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


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
