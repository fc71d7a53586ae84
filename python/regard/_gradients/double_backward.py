"""The gradients of the gradients of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from regard._arguments.arrays import (
    as_float_arrays,
    as_lse,
    as_stored_arrays,
    check_shape,
    stand_in,
)
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.options import SecondOrderOptions, names_of, takes_options
from regard._attention.check import check_call
from regard._gradients.second_order_sums import Inputs, second_order_sums
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]
    Shape = tuple[int, ...]

_NAME = "scaled_dot_product_attention_double_backward"


@public
class DoubleGradients(NamedTuple):
    """The gradients of a loss that depends on the gradients of attention.

    Each gradient has the shape and the type of its input.
    """

    grad_output: Array
    query: Array
    key: Array
    value: Array


@public
@takes_options(SecondOrderOptions, reference="as given to that call")
def scaled_dot_product_attention_double_backward(
    grad_grad_query: ArrayLike | None,
    grad_grad_key: ArrayLike | None,
    grad_grad_value: ArrayLike | None,
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    output: ArrayLike,
    lse: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    grad_lse: ArrayLike | None = None,
    **options: Unpack[SecondOrderOptions],
) -> DoubleGradients:
    r"""Compute the exact gradients of `scaled_dot_product_attention_backward`.

    A loss that contains gradients of attention, such as a gradient penalty, needs these
    second-order gradients. They also yield products with the Hessian. With a, b and w for
    `grad_grad_query`, `grad_grad_key` and `grad_grad_value`, G for `grad_output`, and P, dP, dS and
    D as in the gradients [1]_,

    .. math:: T = \mathrm{scale}\,(a\, \mathrm{key}^T + \mathrm{query}\; b^T), \qquad
              r = \mathrm{rowsum}(P \circ T), \\
              X_0 = (dP - D) \circ T - r \circ dP + G\, w^T, \qquad
              X = P \circ (X_0 - \mathrm{rowsum}(P \circ X_0)), \\
              \mathrm{grad\_output}' = (P \circ (T - r))\, \mathrm{value} + P\, w, \qquad
              \mathrm{value}' = (P \circ (T - r))^T G, \\
              \mathrm{query}' = \mathrm{scale}\,(X\, \mathrm{key} + dS\, b), \qquad
              \mathrm{key}' = \mathrm{scale}\,(X^T \mathrm{query} + dS^T a)

    Parameters
    ----------
    grad_grad_query, grad_grad_key, grad_grad_value : array_like or None
        The gradients of the loss with respect to the gradients of `query`, `key` and `value`, each
        with the shape of its input. None means zero.
    grad_output, query, key, value, output, lse, mask, grad_lse
        As passed to `scaled_dot_product_attention_backward`, like all options that follow.
    {options}

    Returns
    -------
    DoubleGradients
        Named tuple of the gradients with respect to `grad_output`, `query`, `key` and `value`.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If shapes disagree or a number is out of range.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    scaled_dot_product_attention_backward : the gradients.
    scaled_dot_product_attention_jvp : computes the gradient with respect to `grad_output` too, as
        the derivative along (a, b, w).

    Notes
    -----
    The function differentiates the gradients of query, key and value, as functions of
    `grad_output`, `query`, `key` and `value`. All other arguments are constants.

    A fully masked row has gradients of exactly 0 and contributes nothing to other gradients.
    A pair of a query and a hidden key contributes nothing to any gradient, not even NaN. The
    gradient of a key head is the sum over the query heads that read it. The gradient of an input
    with broadcast batch axes is the sum over these axes.

    The function is written in NumPy, on `matmul`, and takes several times as long as the gradients.
    It processes the queries of a head in blocks of at most 128 queries, and of at most 2**18 scores
    unless one query sees more keys. In addition to the results, it needs memory for a few arrays of
    that many scores and for some arrays of the size of one head's queries, keys and values. Float16
    and bfloat16 are computed in float32, and their results are stored in float32 until they are
    complete.

    A block contains only the keys between the first and the last key that one of its queries sees,
    so that masks of short documents or windows save time. The order of sums depends only on the
    shapes and on the visible pairs: no bit changes with the number of threads, other entries of the
    batch, or strides, or if a dense mask is replaced by a sparse mask.

    References
    ----------
    .. [1] Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with
       IO-Awareness", 2022, appendix B. https://arxiv.org/abs/2205.14135

    Examples
    --------
    The gradient of a penalty, half the squared norm of a gradient:

    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key, value, grad_output = rng.standard_normal((4, 2, 6, 16))
    >>> def gradient_of_query(query):
    ...     output, lse = regard.scaled_dot_product_attention(query, key, value, return_lse=True)
    ...     given = query, key, value, output, lse
    ...     return regard.scaled_dot_product_attention_backward(grad_output, *given).query, given
    >>> gradient, given = gradient_of_query(query)
    >>> of_penalty = regard.scaled_dot_product_attention_double_backward(
    ...     gradient, None, None, grad_output, *given
    ... )
    >>> step = 1e-3 * of_penalty.query
    >>> further, _ = gradient_of_query(query + step)
    >>> growth = ((further**2).sum() - (gradient**2).sum()) / 2
    >>> bool(np.isclose(growth, (step * of_penalty.query).sum(), rtol=0.01))
    True
    """
    check_options(_NAME, options, names_of(SecondOrderOptions), kind="gradients")
    if mask is not None:
        warn_if_zero_one(mask)
    call = check_call(query, key, value, mask, with_arrays(options))
    check = _InputChecker(call.result_type, call.arithmetic)
    tangents = (
        check.tangent("grad_grad_query", grad_grad_query, call.query),
        check.tangent("grad_grad_key", grad_grad_key, call.key),
        check.tangent("grad_grad_value", grad_grad_value, call.value),
    )
    rows = call.rows
    outputs = (*rows, call.sizes.value_dim)
    inputs = Inputs(
        check.rows("grad_output", grad_output, outputs, "output"),
        call.query,
        call.key,
        call.value,
        *tangents,
        check.rows("output", output, outputs, "the forward call's output"),
        check.numbers("lse", as_lse(lse), rows, "the forward call's lse"),
        None if grad_lse is None else check.numbers("grad_lse", grad_lse, rows, "lse"),
    )
    return DoubleGradients(*second_order_sums(call, inputs))


class _InputChecker:
    """Converter of the arguments other than the inputs, which raises TypeError or ValueError."""

    def __init__(self, result_type: str, arithmetic: np.dtype[Any]) -> None:
        self.result_type, self.dtype = result_type, arithmetic

    def rows(self, name: str, given: ArrayLike, shape: Shape, meaning: str) -> Array:
        """Return an array of the given shape, of a type that is compatible with the inputs."""
        (array,) = as_stored_arrays(**{name: given})
        check_shape(name, array, shape, meaning)
        if array.dtype == np.float64 and self.dtype != np.float64:
            raise TypeError(
                f"{name} must be float32, float16 or bfloat16, since query, key and value "
                f"determine the type {self.result_type}, got an array of float64"
            )
        return array

    def tangent(self, name: str, given: ArrayLike | None, like: Array) -> Array:
        """Return an array of the shape of an input; None becomes zeros."""
        if given is None:
            return stand_in(like.shape, self.dtype)
        return self.rows(name, given, like.shape, name.removeprefix("grad_grad_"))

    def numbers(self, name: str, given: ArrayLike, shape: Shape, meaning: str) -> Array:
        """Return an array of one float32 or float64 number per row."""
        (array,) = as_float_arrays(**{name: given})
        check_shape(name, array, shape, meaning)
        return array
