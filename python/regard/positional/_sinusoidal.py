"""Encode positions as sines and cosines, to be added to an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard.positional._frequencies import DEFAULT_BASE, geometric

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


@refuses_unknown
def sinusoidal(
    length: SupportsIndex,
    dim: SupportsIndex,
    base: SupportsFloat = DEFAULT_BASE,
    *,
    dtype: DTypeLike = np.float64,
) -> NDArray[np.floating[Any]]:
    """Encode the positions from 0 to ``length - 1`` as sines and cosines.

    Column ``2 m`` of row ``p`` is ``sin(p / base ** (2 m / dim))`` and column ``2 m + 1`` is the
    cosine of the same angle [1]_. If `dim` is odd, the last column is a sine. The angles are
    computed in float64 for every `dtype`.

    Parameters
    ----------
    length : int
        Number of positions.
    dim : int
        Number of columns: the size of the embedding to which the encoding is added.
    base : float, optional
        Wavelengths grow from ``2 pi`` toward ``2 pi * base`` along the columns.
    dtype : dtype, optional
        A floating-point dtype.

    Returns
    -------
    numpy.ndarray
        The encoding, of shape ``(length, dim)`` and type `dtype`.

    Raises
    ------
    TypeError
        If `length` or `dim` is not an integer, `base` is not a real number or `dtype` is not
        floating-point.
    ValueError
        If `length` is negative, `dim` is less than 1, or `base` is not positive and finite.

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
       https://arxiv.org/abs/1706.03762

    Examples
    --------
    >>> import regard
    >>> regard.positional.sinusoidal(3, 4).round(4)
    array([[ 0.    ,  1.    ,  0.    ,  1.    ],
           [ 0.8415,  0.5403,  0.01  ,  1.    ],
           [ 0.9093, -0.4161,  0.02  ,  0.9998]])
    """
    length = count("length", length)
    dim = count("dim", dim, minimum=1)
    to = floating("dtype", dtype)
    angle = np.arange(length)[:, None] * geometric(dim, base)
    encoding = np.empty((length, dim), to)
    encoding[:, 0::2] = np.sin(angle)
    encoding[:, 1::2] = np.cos(angle[:, : dim // 2])
    return encoding
