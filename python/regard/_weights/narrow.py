"""Store weights in 16 or 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard._arguments.arrays import dtype_of, shown
from regard._runtime.optional import needed
from regard._weights.quantized import QuantizedWeight, empty_weight, fill, row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

Weight: TypeAlias = "Array | QuantizedWeight"
WEIGHT_DTYPES = ("float16", "bfloat16", "int8")


def weight_dtype_name(weight_dtype: Any) -> str | None:
    """Return the name of a storage type of weights, or raise TypeError or ValueError."""
    if weight_dtype is None:
        return None
    # NumPy knows the name bfloat16 from the import of ml_dtypes.
    name = weight_dtype
    if not isinstance(name, str):
        name = dtype_of("weight_dtype", weight_dtype, f"None or one of {WEIGHT_DTYPES}").name
    if name not in WEIGHT_DTYPES:
        raise ValueError(f"weight_dtype must be None or one of {WEIGHT_DTYPES}, got {shown(name)}")
    if name == "bfloat16":
        needed("ml_dtypes", "weight_dtype='bfloat16'", "models")
    return name


def narrow_weight(
    name: str, shape: tuple[int, ...], weight_dtype: str, read: Callable[[slice], Array]
) -> Weight:
    """Return a matrix in 16 or 8 bits, whose rows `read` returns a few at a time."""
    if weight_dtype == "int8":
        weight = empty_weight(shape)
        for rows in row_blocks(shape):
            values = read(rows)
            try:
                fill(weight, rows, values)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return weight
    array = np.empty(shape, weight_dtype)
    for rows in row_blocks(shape):
        values = read(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            array[rows] = values
        became_infinite = np.isinf(array[rows].astype(np.float32)) & np.isfinite(values)
        if became_infinite.any():
            raise ValueError(
                f"{name}: a weight is too large to be kept as {weight_dtype}, "
                f"got {values[became_infinite][0]}"
            )
    return array
