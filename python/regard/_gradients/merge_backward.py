"""The gradients of merged attention states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regard._arguments.arrays import as_stored_arrays, check_shape, compute_type
from regard._attention.merge import merge_attention_states, native_parts
from regard._gradients.wanted import summed_to
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


@public
def merge_attention_states_backward(
    grad_output: ArrayLike,
    outputs: Iterable[ArrayLike],
    lses: Iterable[ArrayLike],
    output: ArrayLike,
    lse: ArrayLike,
    *,
    grad_lse: ArrayLike | None = None,
) -> tuple[list[Array], list[Array]]:
    r"""Compute the exact gradients of `merge_attention_states`.

    With G for `grad_output`,

    .. math:: w_i = e^{\mathrm{lse}_i - \mathrm{lse}}, \qquad
              \mathrm{grad\_output}_i = w_i\, G, \\
              \mathrm{grad\_lse}_i = w_i \left(\mathrm{rowsum}(G \circ
                  (\mathrm{output}_i - \mathrm{output})) + \mathrm{grad\_lse}\right)

    Together with `scaled_dot_product_attention_backward`, which accepts both gradients of a part,
    this yields the gradients of attention whose keys are split into parts.

    Parameters
    ----------
    grad_output : array_like, shape (..., q_len, value_dim)
        The gradient of the loss with respect to the merged output.
    outputs, lses : sequence of array_like
        As passed to `merge_attention_states`.
    output : array_like, shape (..., q_len, value_dim)
        The merged output of that call.
    lse : array_like, shape (..., q_len)
        The merged log-sum-exp of that call.
    grad_lse : array_like, shape (..., q_len), optional
        The gradient of the loss with respect to the merged `lse`. Default: zero.

    Returns
    -------
    grad_outputs : list of ndarray
        For each part, the gradient with respect to its output, with the same shape and type.
    grad_lses : list of ndarray
        For each part, the gradient with respect to its lse, with the same shape and type.

    Raises
    ------
    TypeError
        If an array has the wrong type.
    ValueError
        If there is no part, `outputs` and `lses` have different numbers of parts, or shapes
        disagree.

    See Also
    --------
    merge_attention_states : the forward call.
    scaled_dot_product_attention_backward : the gradients of a part.

    Notes
    -----
    A part in which a row is fully masked (lse -inf) has gradients of exactly 0 in that row, and
    contributes nothing to the gradients of the other parts, whatever its output contains. The same
    holds if the row is fully masked in all parts: `merge_attention_states` then adds up outputs
    that are 0 for any queries, keys and values, so the loss does not depend on them. The gradient
    of a broadcast part is the sum over the broadcast axes.

    The weights of the parts are computed in float64. Products are computed in float64 if an array
    of `outputs` or `grad_output` is float64, and in float32 for all narrower types.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((8, 5, 64))
    >>> key, value = rng.standard_normal((2, 8, 1000, 64))
    >>> halves = [slice(0, 500), slice(500, 1000)]
    >>> outputs, lses = [], []
    >>> for half in halves:
    ...     output, lse = regard.scaled_dot_product_attention(
    ...         query, key[:, half], value[:, half], return_lse=True
    ...     )
    ...     outputs.append(output)
    ...     lses.append(lse)
    >>> output, lse = regard.merge_attention_states(outputs, lses)
    >>> grad_output = rng.standard_normal(output.shape)
    >>> grad_outputs, grad_lses = regard.merge_attention_states_backward(
    ...     grad_output, outputs, lses, output, lse
    ... )

    The gradient of the queries is the sum over the parts:

    >>> grad_query = sum(
    ...     regard.scaled_dot_product_attention_backward(
    ...         grad_outputs[i],
    ...         query,
    ...         key[:, half],
    ...         value[:, half],
    ...         outputs[i],
    ...         lses[i],
    ...         grad_lse=grad_lses[i],
    ...         with_respect_to=("query",),
    ...     ).query
    ...     for i, half in enumerate(halves)
    ... )
    >>> whole = regard.scaled_dot_product_attention_backward(
    ...     grad_output, query, key, value, output, lse
    ... )
    >>> bool(np.allclose(grad_query, whole.query, rtol=0, atol=1e-14))
    True
    """
    states, sums = native_parts("outputs", outputs), native_parts("lses", lses)
    # It raises the errors of parts that do not belong together.
    whole, _ = merge_attention_states(states, sums)
    shape, rows = whole.shape, whole.shape[:-1]
    grads, merged, total = as_stored_arrays(grad_output=grad_output, output=output, lse=lse)
    check_shape("grad_output", grads, shape, "output")
    check_shape("output", merged, shape, "the merged output")
    check_shape("lse", total, rows, "the merged lse")
    extra = np.zeros(())
    if grad_lse is not None:
        (extra,) = as_stored_arrays(grad_lse=grad_lse)
        check_shape("grad_lse", extra, rows, "lse")

    dtype = compute_type(grads.dtype, merged.dtype, *(state.dtype for state in states))
    grads, merged = grads.astype(dtype, copy=False), merged.astype(dtype, copy=False)
    total, extra = total.astype(np.float64), extra.astype(np.float64)
    grad_outputs, grad_lses = [], []
    with np.errstate(all="ignore"):
        for state, own in zip(states, sums, strict=True):
            wide = own.astype(np.float64)
            # Equal values include +inf, whose difference is NaN.
            share = np.where(wide == total, 1.0, np.exp(wide - total))
            is_blind = np.broadcast_to(np.isneginf(wide), rows)
            of_output = share.astype(dtype)[..., None] * grads
            of_output[is_blind] = 0
            away = state.astype(dtype, copy=False) - merged
            of_lse = share * (np.einsum("...d,...d->...", grads, away) + extra)
            of_lse[is_blind] = 0
            grad_outputs.append(summed_to(of_output, state.shape, state.dtype))
            grad_lses.append(summed_to(of_lse, own.shape, own.dtype))
    return grad_outputs, grad_lses
