"""Derivatives of attention along a direction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard import _core
from regard._arguments.arrays import as_computed, as_stored_arrays
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import raise_with_hint, warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks
from regard._arguments.options import BackwardOptions, names_of, takes_options
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_NAME = "scaled_dot_product_attention_jvp"
_OPTIONS = (*names_of(BackwardOptions), "return_lse")


@public
@takes_options(BackwardOptions)
def scaled_dot_product_attention_jvp(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    tangent_query: ArrayLike | None,
    tangent_key: ArrayLike | None,
    tangent_value: ArrayLike | None,
    mask: ArrayLike | None = None,
    *,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    r"""Compute attention and its derivative along a direction, fused (forward mode).

    With the weights P and the tangent T of the scores,

    .. math:: T = \mathrm{scale}\,(\mathrm{tangent\_query}\;\mathrm{key}^T
                  + \mathrm{query}\;\mathrm{tangent\_key}^T), \\
              r = \mathrm{rowsum}(P \circ T) = \mathrm{tangent\_lse}, \\
              \mathrm{tangent\_output} = (P \circ T)\,\mathrm{value} - r\,\mathrm{output}
                  + P\,\mathrm{tangent\_value},

    in one pass over the keys, without ever storing the scores.

    Parameters
    ----------
    query, key, value, mask
        As in `scaled_dot_product_attention`.
    tangent_query, tangent_key, tangent_value : array_like or None
        The direction: an array of the shape of its input, or None for zero, which saves work.
        Float64 arrays are rounded if the call computes in float32.
    return_lse : bool, default False
        Also return the log-sum-exp of every row's visible scores and its derivative.
    {options}

    Returns
    -------
    output : ndarray, shape (..., heads, q_len, value_dim)
        The output of `scaled_dot_product_attention`, up to rounding.
    tangent_output : ndarray, shape (..., heads, q_len, value_dim)
        The derivative of the output along the direction, in the output's type.
    lse, tangent_lse : ndarray, shape (..., heads, q_len)
        Returned if `return_lse`, in float64 if the output is float64, else in float32.

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
    scaled_dot_product_attention_backward : gradients (reverse mode).

    Notes
    -----
    A fully masked row has a derivative of 0. Hidden keys and values, even NaN, never affect the
    derivative of a query.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key, value, tangent = rng.standard_normal((4, 2, 6, 16))
    >>> output, along = regard.scaled_dot_product_attention_jvp(
    ...     query, key, value, tangent, None, None
    ... )
    >>> moved = regard.scaled_dot_product_attention(query + 1e-6 * tangent, key, value)
    >>> bool(np.allclose((moved - output) / 1e-6, along, atol=1e-5))
    True
    """
    check_options(_NAME, options, _OPTIONS)
    if mask is not None:
        warn_if_zero_one(mask)
    if return_lse is not False:
        options["return_lse"] = return_lse
    tangents = {
        "tangent_query": tangent_query,
        "tangent_key": tangent_key,
        "tangent_value": tangent_value,
    }
    options = with_arrays(options)
    result: Any = NotImplemented
    try:
        result = _core.attention_jvp(query, key, value, mask, options, *tangents.values())
    except ValueError as error:
        raise_with_hint(error, query, key)
    if result is NotImplemented:
        query, key, value = as_stored_arrays(query=query, key=key, value=value)
        for name, tangent in tangents.items():
            if tangent is not None:
                (stored,) = as_stored_arrays(**{name: tangent})
                tangents[name] = as_computed(stored, query, key, value)
        converted = query, key, value, Masks.of(mask).argument
        result = _core.attention_jvp(*converted, options, *tangents.values())
    return result
