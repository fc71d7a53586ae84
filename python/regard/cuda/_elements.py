"""Element types: names, sizes and NumPy types."""

from __future__ import annotations

from typing import Any

import numpy as np

# The element types that arguments of a call may have.
ITEM_BYTES = {
    "bool": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
}
COMPUTED = ("float16", "bfloat16", "float32")

# DLPack type codes and bits.
DLPACK = {
    "bool": (6, 8),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "int32": (0, 32),
    "int64": (0, 64),
}


def numpy_type(element: str) -> np.dtype[Any]:
    """Return the NumPy dtype of an element type. The ml_dtypes package provides bfloat16."""
    if element != "bfloat16":
        return np.dtype(element)
    try:
        import ml_dtypes
    except ImportError:
        raise RuntimeError(
            "NumPy has no bfloat16 without the ml_dtypes package: pip install ml_dtypes"
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides[: len(shape)]))
