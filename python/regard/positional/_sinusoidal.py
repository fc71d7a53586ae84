"""Sinusoidal encodings, and the slopes of attention with linear biases (ALiBi)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard.positional._scaling import DEFAULT_BASE, geometric

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


@refuses_unknown
def alibi_slopes(
    heads: SupportsIndex, *, dtype: DTypeLike = np.float64
) -> NDArray[np.floating[Any]]:
    """Return the slope of each head for attention with linear biases (ALiBi).

    Attention subtracts ``slope * |p - j|`` from the score of a query at position ``p`` and key
    ``j``. If `heads` is a power of two, head ``h`` has the slope ``2 ** (-8 (h + 1) / heads)``: a
    geometric sequence that ends at ``2 ** -8`` [1]_. Otherwise let ``n`` be the largest power of
    two below `heads`. The first ``n`` heads have the slopes for ``n`` heads. The other heads have
    every second slope for ``2 n`` heads, beginning with the first, as in the authors'
    implementation [2]_.

    Parameters
    ----------
    heads : int
        Number of query heads, at least 1.
    dtype : dtype, optional
        A floating-point dtype.

    Returns
    -------
    numpy.ndarray
        Positive slopes of shape ``(heads,)`` and type `dtype`.

    Raises
    ------
    TypeError
        If `heads` is not an integer or `dtype` is not floating-point.
    ValueError
        If `heads` is less than 1.

    See Also
    --------
    regard.scaled_dot_product_attention : accepts the slopes as ``alibi_slopes``.

    References
    ----------
    .. [1] Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear Biases Enables
       Input Length Extrapolation", ICLR 2022, section 3. https://arxiv.org/abs/2108.12409
    .. [2] https://github.com/ofirpress/attention_with_linear_biases

    Examples
    --------
    >>> import regard
    >>> regard.positional.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    >>> regard.positional.alibi_slopes(6)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       ,
           0.125     ])
    """
    heads = count("heads", heads, minimum=1)
    power = 1 << (heads.bit_length() - 1)
    steps = np.arange(1, power + 1)
    between = np.arange(1, 2 * (heads - power), 2)
    exponents = np.concatenate([8 * steps, 4 * between]) / power
    slopes: NDArray[np.floating[Any]] = np.exp2(-exponents).astype(floating("dtype", dtype))
    return slopes
