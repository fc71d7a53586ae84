"""The product of a linear layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray: TypeAlias = NDArray[np.floating[Any]]


def project(
    x: FloatArray, weight: FloatArray, bias: FloatArray | None, threads: int | None
) -> FloatArray:
    """Return ``x @ weight.T + bias`` for a weight of shape (d_out, d_in)."""
    d_out, d_in = weight.shape
    # A single product over all rows is faster than one for each batch entry.
    rows: FloatArray = _core.matmul(
        x.reshape(math.prod(x.shape[:-1]), d_in), weight.T, None, threads
    )
    if bias is not None:
        # NaN and infinity are results, not warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            rows += bias
    return rows.reshape(*x.shape[:-1], d_out)
