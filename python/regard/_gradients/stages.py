"""The gradients of the four stages of attention, in NumPy on the stages."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from regard._arguments.arrays import as_array, as_float_arrays, check_shape, is_floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.masks import is_sparse
from regard._attention.stages import apply_mask, matmul, scale
from regard._gradients.wanted import summed_to
from regard._runtime.public import public

if TYPE_CHECKING:
    from typing import SupportsIndex

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


@public
@refuses_unknown
def matmul_backward(
    grad_output: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    threads: int | None = None,
) -> tuple[Array, Array]:
    r"""Compute the gradients of `matmul`.

    With G for `grad_output`,

    .. math:: \mathrm{grad\_a} = G\, b^T, \qquad \mathrm{grad\_b} = a^T G

    Parameters
    ----------
    grad_output : array_like, shape (..., rows, columns)
        The gradient of the loss with respect to the product.
    a : array_like, shape (..., rows, depth) or (depth,)
        As passed to `matmul`. Float32 or float64; integers and lists become float64.
    b : array_like, shape (..., depth, columns) or (depth,)
        Likewise.
    threads : int, optional
        Maximum number of threads. The bits of the result do not depend on it.

    Returns
    -------
    grad_a, grad_b : ndarray
        The gradients of `a` and `b`, with their shapes. The gradient of an operand with broadcast
        axes is the sum over these axes.

    Raises
    ------
    TypeError
        If an array is not float32 or float64 and is not converted to them.
    ValueError
        If shapes disagree, or an operand is a scalar.

    See Also
    --------
    matmul : the forward call.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    >>> grad_a, grad_b = regard.matmul_backward(np.ones((2, 1)), a, b)
    >>> grad_a, grad_b
    (array([[5., 6.],
           [5., 6.]]), array([[4.],
           [6.]]))
    """
    grads, left, right = as_float_arrays(grad_output=grad_output, a=a, b=b)
    check_shape("grad_output", grads, _product_shape(left, right), "the product of a and b")
    # As in NumPy, a vector on the left is a row, and a vector on the right is a column.
    rows = left[None] if left.ndim == 1 else left
    columns = right[:, None] if right.ndim == 1 else right
    grads = grads[..., None] if right.ndim == 1 else grads
    grads = grads[..., None, :] if left.ndim == 1 else grads
    of_left = matmul(grads, columns.swapaxes(-1, -2), threads=threads)
    of_left = summed_to(of_left, rows.shape, of_left.dtype)
    if columns.ndim == 2:
        # One product over the rows of the whole batch, which is the sum over its axes.
        count = math.prod(rows.shape[:-1])
        rows, grads = (each.reshape(count, each.shape[-1]) for each in (rows, grads))
    of_right = matmul(rows.swapaxes(-1, -2), grads, threads=threads)
    of_right = summed_to(of_right, columns.shape, of_right.dtype)
    return of_left.reshape(left.shape), of_right.reshape(right.shape)


def _product_shape(a: Array, b: Array) -> tuple[int, ...]:
    """Return the shape of the product, or raise the errors of `matmul`."""
    if not a.ndim or not b.ndim:
        name = "b" if a.ndim else "a"
        raise ValueError(f"{name} must have at least 1 dimension, got a scalar")
    depth = b.shape[-2 if b.ndim > 1 else 0]
    if a.shape[-1] != depth:
        raise ValueError(
            "the last axis of a and the last but one of b must agree, got "
            f"{a.shape[-1]} and {depth} (shapes {a.shape} and {b.shape})"
        )
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"a and b must have leading axes that broadcast, got shapes {a.shape} and {b.shape}"
        ) from None
    return (*lead, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))


@public
@refuses_unknown
def scale_backward(
    grad_output: ArrayLike,
    factor: float,
    *,
    threads: int | None = None,
) -> Array:
    """Compute the gradient of `scale` with respect to the scores.

    Parameters
    ----------
    grad_output : array_like
        The gradient of the loss with respect to the scaled scores. Float32 or float64; integers and
        lists become float64.
    factor : float
        As passed to `scale`.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    ndarray
        ``grad_output * factor``, the gradient of the scores.

    Raises
    ------
    TypeError
        If `factor` is not a real number, or `grad_output` has the wrong type.

    See Also
    --------
    scale : the forward call.

    Notes
    -----
    The gradient of `factor` is ``(grad_output * scores).sum()``.

    Examples
    --------
    >>> import regard
    >>> regard.scale_backward([[1.0, 2.0]], 0.5)
    array([[0.5, 1. ]])
    """
    (grads,) = as_float_arrays(grad_output=grad_output)
    return scale(grads, factor, threads=threads)


@public
@refuses_unknown
def apply_mask_backward(
    grad_output: ArrayLike,
    mask: ArrayLike,
    *,
    threads: int | None = None,
) -> tuple[Array, Array | None]:
    """Compute the gradients of `apply_mask`.

    Parameters
    ----------
    grad_output : array_like, shape (..., q_len, kv_len)
        The gradient of the loss with respect to the masked scores. Float32 or float64; integers and
        lists become float64.
    mask : array_like of bool or float, or SparseMask
        As passed to `apply_mask`.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    grad_scores : ndarray
        `grad_output` where the mask shows a score, and 0 where it hides a score, even if
        `grad_output` is NaN there.
    grad_mask : ndarray or None
        The gradient of a float mask, with its shape and the type of `grad_output`: the same
        numbers, summed over the axes along which the mask was broadcast. None for a bool mask or a
        sparse mask, which has no gradient.

    Raises
    ------
    TypeError
        If `mask` is neither bool nor float, or `grad_output` has the wrong type.
    ValueError
        If `mask` does not broadcast to the shape of `grad_output`.

    See Also
    --------
    apply_mask : the forward call.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> grad_scores, grad_mask = regard.apply_mask_backward(
    ...     [[1.0, 2.0], [3.0, 4.0]], np.array([0.5, -np.inf])
    ... )
    >>> grad_scores
    array([[1., 0.],
           [3., 0.]])
    >>> grad_mask
    array([4., 0.])
    """
    (grads,) = as_float_arrays(grad_output=grad_output)
    try:
        hidden = np.isneginf(apply_mask(np.zeros(grads.shape, grads.dtype), mask, threads=threads))
    except ValueError as error:
        raise ValueError(f"{error}".replace("scores", "grad_output")) from None
    grad_scores = np.where(hidden, grads.dtype.type(0), grads)
    if is_sparse(mask):
        return grad_scores, None
    bias = as_array("mask", mask)
    if not is_floating(bias.dtype):
        return grad_scores, None
    return grad_scores, summed_to(grad_scores, bias.shape, grad_scores.dtype)


def _axis(axis: SupportsIndex, ndim: int) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis must be an integer, got {type(axis).__name__}")
    place = operator.index(axis)
    if not ndim:
        raise ValueError(f"axis must be an axis of output, which has none, got {place}")
    if not -ndim <= place < ndim:
        raise ValueError(
            f"axis must be from {-ndim} to {ndim - 1} for output of {ndim} dimensions, got {place}"
        )
    return place


@public
@refuses_unknown
def softmax_backward(
    grad_output: ArrayLike,
    output: ArrayLike,
    axis: SupportsIndex = -1,
) -> Array:
    r"""Compute the gradient of `softmax`.

    With y for `output` and g for `grad_output`,

    .. math:: \mathrm{grad}_i = y_i \left(g_i - \sum_j g_j\, y_j\right)

    Parameters
    ----------
    grad_output : array_like
        The gradient of the loss with respect to the output of `softmax`. Float32 or float64;
        integers and lists become float64.
    output : array_like
        The output of `softmax`, with the same shape.
    axis : int, default -1
        As passed to `softmax`.

    Returns
    -------
    ndarray
        The gradient of the input of `softmax`.

    Raises
    ------
    TypeError
        If an array has the wrong type or `axis` is not an integer.
    ValueError
        If the shapes differ or `axis` is out of range.

    See Also
    --------
    softmax : the forward call.
    scaled_dot_product_attention_backward : computes the gradients of all stages at once.

    Notes
    -----
    Where the output is 0, as for scores of -inf, the gradient is 0, and `grad_output` is not read:
    NaN at a hidden key changes nothing.

    Examples
    --------
    The gradients of attention, stage by stage, as the fused call computes them:

    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key, value, grad_output = rng.standard_normal((4, 6, 2))
    >>> factor, mask = 2**-0.5, np.tri(6, dtype=bool)
    >>> scores = regard.matmul(query, key.T)
    >>> weights = regard.softmax(regard.apply_mask(regard.scale(scores, factor), mask))
    >>> output = regard.matmul(weights, value)

    >>> grad_weights, grad_value = regard.matmul_backward(grad_output, weights, value)
    >>> grad_masked = regard.softmax_backward(grad_weights, weights)
    >>> grad_scaled, _ = regard.apply_mask_backward(grad_masked, mask)
    >>> grad_scores = regard.scale_backward(grad_scaled, factor)
    >>> grad_query, grad_key_transposed = regard.matmul_backward(grad_scores, query, key.T)

    >>> output, lse = regard.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, return_lse=True
    ... )
    >>> fused = regard.scaled_dot_product_attention_backward(
    ...     grad_output, query, key, value, output, lse, is_causal=True
    ... )
    >>> bool(np.allclose(grad_query, fused.query, rtol=0, atol=1e-14))
    True
    >>> bool(np.allclose(grad_key_transposed.T, fused.key, rtol=0, atol=1e-14))
    True
    """
    grads, weights = as_float_arrays(grad_output=grad_output, output=output)
    check_shape("grad_output", grads, weights.shape, "output")
    place = _axis(axis, weights.ndim)
    with np.errstate(over="ignore", invalid="ignore"):
        seen = np.where(weights == 0, grads.dtype.type(0), grads)
        seen -= (seen * weights).sum(axis=place, keepdims=True)
        seen *= weights
    return seen
