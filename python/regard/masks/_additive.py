"""Convert bool masks to additive masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.masks import is_pair

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray


@refuses_unknown
def as_additive(mask: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[np.floating[Any]]:
    """Convert a bool mask to an additive mask, which is added to the scaled scores.

    Parameters
    ----------
    mask : array_like of bool
        True where a query may attend.
    dtype : dtype, optional
        A floating-point dtype.

    Returns
    -------
    numpy.ndarray
        An array of type `dtype` and the shape of `mask`: 0 where `mask` is True, -inf elsewhere.

    Raises
    ------
    TypeError
        If `mask` is not bool or `dtype` is not floating-point.

    Examples
    --------
    >>> import regard
    >>> regard.masks.as_additive(regard.masks.causal(3))
    array([[  0., -inf, -inf],
           [  0.,   0., -inf],
           [  0.,   0.,   0.]], dtype=float32)
    """
    if is_pair(mask):
        raise TypeError("mask must be one array of bool here, got a pair")
    allowed = as_array("mask", mask)
    if allowed.dtype != np.bool_:
        raise TypeError(f"mask must be bool (True = may attend), got {allowed.dtype}")
    to = floating("dtype", dtype)
    additive = np.zeros(allowed.shape, to)
    additive[~allowed] = -np.inf
    return additive
