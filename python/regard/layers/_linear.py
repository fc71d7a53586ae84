"""The product of a linear layer, and its gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard import _core
from regard._weights.quantized import multiply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._weights.quantized import Weight

    FloatArray: TypeAlias = NDArray[np.floating[Any]]


def project(
    x: FloatArray, weight: Weight, bias: FloatArray | None, threads: int | None
) -> FloatArray:
    """Return ``x @ weight.T + bias`` for a weight of shape (d_out, d_in)."""
    # A single product over all rows is faster than one for each batch entry.
    rows: FloatArray = multiply(_rows(x), weight.T, None, threads)
    if bias is not None:
        # NaN and infinity are results, not warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            rows += bias
    return rows.reshape(*x.shape[:-1], weight.shape[0])


def gradient_of_input(grad: FloatArray, weight: FloatArray, threads: int | None) -> FloatArray:
    """Return ``grad @ weight``, the gradient of x in `project`."""
    return project(grad, weight.T, None, threads)


def gradient_of_weight(grad: FloatArray, x: FloatArray, threads: int | None) -> FloatArray:
    """Return the gradient of the weight in `project`, summed over all rows.

    Rows whose gradient is 0, such as keys that no query sees, add nothing, whatever they contain.
    """
    grad, x = _rows(grad), _rows(x)
    product: FloatArray = _core.matmul(grad.T, x, None, threads)
    if not np.isfinite(product).all():
        is_used = grad.any(axis=1, keepdims=True)
        product = _core.matmul(grad.T, np.where(is_used, x, x.dtype.type(0)), None, threads)
    return product


def gradient_of_bias(grad: FloatArray, threads: int | None) -> FloatArray:
    """Return the sum over all rows of an array ``(..., d_out)``."""
    rows = _rows(grad)
    # A product sums in blocks, and rounds less than np.sum does along the first axis.
    ones = np.ones((1, len(rows)), rows.dtype)
    total: FloatArray = _core.matmul(ones, rows, None, threads)[0]
    return total


def _rows(x: FloatArray) -> FloatArray:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
