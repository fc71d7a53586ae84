"""The four stages of attention as separate functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from regard import _core
from regard._arguments.arrays import as_factors, as_float_arrays, broadcasts_to
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import as_mask, is_sparse
from regard._arguments.options import takes_options
from regard._runtime.public import public
from regard._weights.quantized import QuantizedWeight, TransposedWeight, multiply

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


# Number of query-key pairs of a sparse mask that are expanded to an array at a time.
_PAIRS_AT_ONCE = 1 << 20


@public
@takes_options()
def matmul(
    a: ArrayLike,
    b: ArrayLike | TransposedWeight,
    *,
    out: Array | None = None,
    threads: int | None = None,
    **options: Never,
) -> Array:
    """Multiply matrices, as `numpy.matmul` does.

    Parameters
    ----------
    a : array_like, shape (..., rows, depth) or (depth,)
        Float32 or float64; integers and lists become float64. Leading axes broadcast.
    b : array_like, shape (..., depth, columns) or (depth,)
        Any strides: ``keys.T`` is read in place. Narrower types, as used for model weights, are
        accepted too: float16, bfloat16 (from the ml_dtypes package), or ``weight.T`` of a
        `QuantizedWeight`, which has 8 bits.
    out : ndarray, optional
        Array to which the product is written. It must have the type and shape of the result, and
        must not overlap an operand.
    threads : int, optional
        Maximum number of threads. The bits of the result do not depend on it.

    Returns
    -------
    ndarray, shape (..., rows, columns)
        ``sum over k of a[..., i, k] * b[..., k, j]``. The axis of a 1-D operand is omitted.

    Raises
    ------
    TypeError
        If an operand is not float32 or float64, is not converted to them and is not a `b` of a
        narrower type, or if `out` has another type.
    ValueError
        If shapes disagree, an operand is a scalar, or `out` overlaps an operand.

    Notes
    -----
    A `b` of a narrower type is expanded to the type of `a`, a block at a time, during the
    multiplication. The result is bitwise the same as if all of `b` had been expanded before. For up
    to eight rows of `a`, `b` is read once, in storage order. Speed is then limited by memory
    bandwidth, and fewer bits are read faster.

    Examples
    --------
    >>> import regard
    >>> regard.matmul([[1, 2], [3, 4]], [[1], [1]])
    array([[3.],
           [7.]])

    A layer whose weight is float16:

    >>> import numpy as np
    >>> x, weight = np.ones((2, 64), np.float32), np.ones((96, 64), np.float16)
    >>> product = regard.matmul(x, weight.T)
    >>> product.shape, product.dtype
    ((2, 96), dtype('float32'))
    """
    if options:
        check_options("matmul", options, ())
    product: Array = multiply(a, b, out, threads)
    if product is not NotImplemented:
        return product
    if isinstance(b, TransposedWeight):
        (a,) = as_float_arrays(a=a)
    elif isinstance(b, QuantizedWeight):
        raise TypeError(f"b must be the transpose, weight.T, of a QuantizedWeight, got {b!r}")
    else:
        a, b = as_factors(a, b)
    product = multiply(a, b, out, threads)
    return product


@public
@takes_options()
def scale(
    scores: ArrayLike,
    factor: float,
    *,
    out: Array | None = None,
    threads: int | None = None,
    **options: Never,
) -> Array:
    """Multiply scores by one number, usually ``1 / sqrt(head_dim)``.

    Parameters
    ----------
    scores : array_like
        Float32 or float64; integers and lists become float64.
    factor : float
        A real number. The result keeps the type of `scores`.
    out : ndarray, optional
        Array to which the result is written; may be `scores` itself.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    ndarray
        ``scores * factor``, with the shape of `scores`. A new array has the memory order of
        `scores`, as with NumPy functions.

    Raises
    ------
    TypeError
        If `factor` is not a real number, or an array has the wrong type.
    ValueError
        If `out` has another shape or partly overlaps `scores`.

    Examples
    --------
    >>> import regard
    >>> regard.scale([[2.0, 4.0]], 0.5)
    array([[1., 2.]])
    """
    if options:
        check_options("scale", options, ())
    scaled: Array = _core.scale(scores, factor, out, threads)
    if scaled is NotImplemented:
        (scores,) = as_float_arrays(scores=scores)
        scaled = _core.scale(scores, factor, out, threads)
    return scaled


@public
@takes_options()
def apply_mask(
    scores: ArrayLike,
    mask: ArrayLike,
    *,
    out: Array | None = None,
    threads: int | None = None,
    **options: Never,
) -> Array:
    """Hide scores, or add a bias to them.

    Parameters
    ----------
    scores : array_like, shape (..., q_len, kv_len)
        Float32 or float64; integers and lists become float64.
    mask : array_like of bool or float, or SparseMask
        Broadcasts to the shape of `scores`. Bool: where False, the result is -inf. Float: added;
        where it is -inf, the result is -inf for any score. A sparse mask is read in blocks of rows.
    out : ndarray, optional
        Array to which the result is written; may be `scores` itself.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    ndarray
        The masked scores, with the shape, type and memory order of `scores`.

    Raises
    ------
    TypeError
        If `mask` is neither bool nor float, or an array has the wrong type.
    ValueError
        If `mask` does not broadcast, or `out` has another shape or partly overlaps an input.

    Examples
    --------
    >>> import regard
    >>> regard.apply_mask([[1.0, 2.0], [3.0, 4.0]], [[True, False], [True, True]])
    array([[  1., -inf],
           [  3.,   4.]])
    """
    if options:
        check_options("apply_mask", options, ())
    warn_if_zero_one(mask)
    masked: Array = _core.apply_mask(scores, mask, out, threads)
    if masked is NotImplemented:
        (scores,) = as_float_arrays(scores=scores)
        native = as_mask(mask)
        if native is None:
            raise TypeError("mask must be an array of bool or float, got None")
        if is_sparse(native):
            return _apply_sparse(scores, native, out, threads)
        masked = _core.apply_mask(scores, native, out, threads)
    return masked


def _apply_sparse(scores: Array, mask: Any, out: Array | None, threads: int | None) -> Array:
    """Hide scores by a sparse mask, which is expanded to arrays in blocks of rows."""
    *planes, q_len, kv_len = mask.shape
    shape = scores.shape
    fits = len(shape) > 1 and broadcasts_to((*planes, q_len, shape[-1]), shape)
    if not fits or kv_len > shape[-1]:
        raise ValueError(
            f"mask must broadcast to the shape of scores, {shape}, got shape {mask.shape}"
        )

    def hide(some: Array, shown: Array) -> None:
        _core.apply_mask(some, shown, some, threads)

    masked: Array = _core.apply_mask(scores, np.ones((), bool), out, threads)
    hide(masked[..., kv_len:], np.zeros((), bool))
    step = max(1, _PAIRS_AT_ONCE // max(math.prod(planes) * kv_len, 1))
    for start in range(0, q_len, step):
        some = slice(start, start + step)
        rows = slice(None) if q_len == 1 else some
        hide(masked[..., rows, :kv_len], mask[..., some, :].to_dense(max_bytes=2**62))
    return masked


@public
@takes_options()
def softmax(
    x: ArrayLike,
    axis: int = -1,
    *,
    out: Array | None = None,
    threads: int | None = None,
    **options: Never,
) -> Array:
    r"""Compute the softmax along an axis.

    .. math:: y_i = \frac{\exp(x_i - \max x)}{\sum_j \exp(x_j - \max x)}

    Parameters
    ----------
    x : array_like
        Float32 or float64; integers and lists become float64.
    axis : int, default -1
        The axis along which the result sums to 1.
    out : ndarray, optional
        Array to which the result is written; may be `x` itself.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    ndarray
        An array with the shape, type and memory order of `x`. If all elements along the axis are
        -inf, the result is 0, as in the fused call for a fully masked row.

    Raises
    ------
    TypeError
        If `x` has the wrong type or `axis` is not an integer.
    ValueError
        If `axis` is out of range, or `out` has another shape or partly overlaps `x`.

    Examples
    --------
    >>> import regard
    >>> regard.softmax([0.1, -0.2, 0.3, -0.2, 0.5]).round(4)
    array([0.1925, 0.1426, 0.2351, 0.1426, 0.2872])
    """
    if options:
        check_options("softmax", options, ())
    weights: Array = _core.softmax(x, axis, out, threads)
    if weights is NotImplemented:
        (x,) = as_float_arrays(x=x)
        weights = _core.softmax(x, axis, out, threads)
    return weights
