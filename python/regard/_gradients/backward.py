"""The gradients of attention."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from regard import _core
from regard._arguments.arrays import as_computed, as_float_arrays, as_lse, as_stored_arrays
from regard._arguments.foreign import readable, with_arrays
from regard._arguments.hints import raise_with_hint, warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks
from regard._arguments.options import GradientOptions, names_of, takes_options
from regard._gradients.wanted import summed_to, wanted_gradients
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Array


# The gradients in the order of the kernels' arguments and results. In place of the gradients of
# slopes and sinks, kernels return terms of their sums over rows.
_OF_KERNELS = ("query", "key", "value", "mask", "alibi_slopes", "sinks", "distance_bias")


@public
class AttentionGradients(NamedTuple):
    """The gradients of a loss with respect to the inputs of attention.

    Each gradient has the shape and the type of its input, or is None if it was not requested.
    """

    query: Array | None = None
    key: Array | None = None
    value: Array | None = None
    mask: Array | None = None
    """The gradient of the float mask, or of the float mask of a pair."""
    alibi_slopes: Array | None = None
    distance_bias: Array | None = None
    sinks: Array | None = None


@public
@takes_options(GradientOptions, reference="as given to the forward call")
def scaled_dot_product_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    output: ArrayLike,
    lse: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    grad_lse: ArrayLike | None = None,
    with_respect_to: Iterable[str] = ("query", "key", "value"),
    out: AttentionGradients | None = None,
    **options: Unpack[GradientOptions],
) -> AttentionGradients:
    r"""Compute the exact gradients of scaled-dot-product attention, fused.

    With the weights :math:`P = e^{S - \mathrm{lse}}` of the scores S, and G for `grad_output`,

    .. math:: \mathrm{grad\_value} = P^T G, \\
              \mathrm{grad\_query} = \mathrm{scale}\; dS\, \mathrm{key}, \qquad
              \mathrm{grad\_key} = \mathrm{scale}\; dS^T\, \mathrm{query}, \\
              dS = P \circ (G\, \mathrm{value}^T - D), \qquad
              D = \mathrm{rowsum}(G \circ \mathrm{output}) - \mathrm{grad\_lse}

    [1]_. The weights are recomputed block by block from `lse`, and are never stored.

    Parameters
    ----------
    grad_output : array_like, shape (..., heads, q_len, value_dim)
        The gradient of the loss with respect to the output. A float64 array is rounded if the call
        computes in float32.
    query, key, value : array_like
        As passed to `scaled_dot_product_attention`.
    output : array_like, shape (..., heads, q_len, value_dim)
        The output of that call.
    lse : array_like, shape (..., heads, q_len)
        The lse of that call, returned with ``return_lse=True``.
    mask : array_like of bool or float, or a pair (bool, float) of both, optional
        As passed to the forward call, like all options that follow.
    grad_lse : array_like, shape (..., heads, q_len), optional
        The gradient of the loss with respect to `lse`, if the loss depends on it. Default: zero.
    with_respect_to : iterable of str, default ("query", "key", "value")
        The fields of the result to compute. ``"mask"`` requires a float mask;
        ``"alibi_slopes"``, ``"distance_bias"`` and ``"sinks"`` require these options.
    out : AttentionGradients, optional
        Arrays to which the requested gradients are written. They must have the shapes and types of
        the inputs, and must not overlap an input. Any strides are accepted. A field of None gets a
        new array.
    {options}

    Returns
    -------
    AttentionGradients
        Named tuple of `query`, `key`, `value`, `mask`, `alibi_slopes`, `distance_bias` and `sinks`.

    Raises
    ------
    TypeError
        If an argument has the wrong type, such as a bool `mask` whose gradient is requested.
    ValueError
        If shapes disagree, a number is out of range, or an array of `out` overlaps another array.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    scaled_dot_product_attention : the forward call.
    scaled_dot_product_attention_jvp : derivatives along a direction.

    Notes
    -----
    A fully masked row has gradients of exactly 0 and contributes nothing to other gradients.
    A pair of a query and a hidden key contributes nothing to any gradient, not even NaN. The
    gradient of a key head is the sum over the query heads that read it. The gradient of an input
    with broadcast batch axes is the sum over these axes.

    In addition to the results, a call needs a fixed amount of memory per thread and, for more than
    a few hundred keys, at most 8 partial gradients of the queries of some heads. The gradient of an
    input whose batch axes are broadcast is first computed for the whole batch. The order of sums
    depends only on the shapes: no bit changes with the number of threads, other entries of the
    batch, or strides.

    References
    ----------
    .. [1] Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with
       IO-Awareness", 2022, appendix B. https://arxiv.org/abs/2205.14135

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 4, 6, 16))
    >>> output, lse = regard.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, return_lse=True
    ... )
    >>> grad_output = 2 * output  # of the loss (output ** 2).sum()
    >>> gradients = regard.scaled_dot_product_attention_backward(
    ...     grad_output, query, key, value, output, lse, is_causal=True
    ... )
    >>> gradients.key.shape
    (4, 6, 16)

    The loss decreases along the negative gradient:

    >>> smaller = regard.scaled_dot_product_attention(
    ...     query, key, value - 0.1 * gradients.value, is_causal=True
    ... )
    >>> bool((smaller**2).sum() < (output**2).sum())
    True
    """
    arrays = (query, key, value), (), mask
    given = (grad_output, output, lse, grad_lse)
    name = "scaled_dot_product_attention_backward"
    return _gradients(name, _core.attention_backward, arrays, given, with_respect_to, out, options)


@public
@takes_options(GradientOptions, reference="as given to the forward call")
def scaled_dot_product_attention_ragged_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    output: ArrayLike,
    lse: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    grad_lse: ArrayLike | None = None,
    with_respect_to: Iterable[str] = ("query", "key", "value"),
    out: AttentionGradients | None = None,
    **options: Unpack[GradientOptions],
) -> AttentionGradients:
    """Compute the exact gradients of attention over packed sequences, fused.

    The gradients of each sequence are bitwise equal to a separate call of
    `scaled_dot_product_attention_backward`.

    Parameters
    ----------
    grad_output : array_like, shape (total_queries, heads, value_dim)
        The gradient of the loss with respect to the output. A float64 array is rounded if the call
        computes in float32.
    query, key, value, query_starts, key_starts
        As passed to `scaled_dot_product_attention_ragged`.
    output : array_like, shape (total_queries, heads, value_dim)
        The output of that call.
    lse : array_like, shape (total_queries, heads)
        The lse of that call, returned with ``return_lse=True``.
    mask, grad_lse, with_respect_to, out
        See `scaled_dot_product_attention_backward`. `grad_lse` has the shape of `lse`.
    {options}

    Returns
    -------
    AttentionGradients
        Named tuple of `query`, `key`, `value`, `mask`, `alibi_slopes`, `distance_bias` and `sinks`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `scaled_dot_product_attention_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> words = rng.standard_normal((5, 4, 16))
    >>> starts = [0, 2, 5]
    >>> output, lse = regard.scaled_dot_product_attention_ragged(
    ...     words, words, words, starts, starts, return_lse=True
    ... )
    >>> gradients = regard.scaled_dot_product_attention_ragged_backward(
    ...     np.ones_like(output), words, words, words, starts, starts, output, lse
    ... )
    >>> gradients.query.shape
    (5, 4, 16)
    """
    starts = readable("query_starts", query_starts), readable("key_starts", key_starts)
    arrays = (query, key, value), starts, mask
    given = (grad_output, output, lse, grad_lse)
    name = "scaled_dot_product_attention_ragged_backward"
    call = _core.attention_ragged_backward
    return _gradients(name, call, arrays, given, with_respect_to, out, options)


def _gradients(
    name: str,
    call: Any,
    arrays: tuple[tuple[ArrayLike, ArrayLike, ArrayLike], tuple[Any, ...], ArrayLike | None],
    given: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None],
    with_respect_to: Iterable[str],
    out: AttentionGradients | None,
    options: Any,
) -> AttentionGradients:
    (query, key, value), starts, mask = arrays
    grad_output, output, lse, grad_lse = given
    if options:
        check_options(name, options, names_of(GradientOptions))
        options = with_arrays(options)
    if mask is not None:
        warn_if_zero_one(mask)
    inputs = {"query": query, "key": key, "value": value, "mask": mask}
    inputs |= {"grad_output": grad_output, "output": output, "lse": lse, "grad_lse": grad_lse}
    wanted = wanted_gradients(with_respect_to, mask, options, out, inputs)
    flags = tuple(map(wanted.names.__contains__, _OF_KERNELS))
    outs = None if out is None else out[:3]
    result = NotImplemented
    try:
        result = call(query, key, value, *starts, mask, options, *given, flags, outs)
    except ValueError as error:
        raise_with_hint(error, query, key)
    if result is NotImplemented:
        query, key, value, grad_output, output = as_stored_arrays(
            query=query, key=key, value=value, grad_output=grad_output, output=output
        )
        grad_output = as_computed(grad_output, query, key, value)
        lse = as_lse(lse)
        if grad_lse is not None:
            (grad_lse,) = as_float_arrays(grad_lse=grad_lse)
        given = (grad_output, output, lse, grad_lse)
        mask = Masks.of(mask).argument
        result = call(query, key, value, *starts, mask, options, *given, flags, outs)
    arrays = (query, key, value), starts, mask
    found = dict(zip(_OF_KERNELS, result, strict=True))
    for name, like in wanted.likes.items():
        if name == "alibi_slopes":
            query_starts = np.asarray(starts[0]) if starts else None
            found[name] = _gradient_of_slopes(found[name], like.shape, query_starts)
        elif name == "sinks":
            _set_blind_rows(found[name], output, grad_lse, lambda: _sees_a_key(arrays, options))
            found[name] = _gradient_of_sinks(like, lse, found[name], is_ragged=bool(starts))
        found[name] = wanted.deliver(name, found[name])
    return AttentionGradients(**found)


def _gradient_of_slopes(
    terms: Array, shape: tuple[int, ...], query_starts: NDArray[np.integer[Any]] | None
) -> Array:
    """Sum the contributions of the rows to the gradients of the ALiBi slopes.

    `terms` has the shape (..., heads, q_len), or (total_queries, heads) with `query_starts`.
    """
    if query_starts is None:
        return summed_to(np.asarray(np.sum(terms, axis=-1, dtype=np.float64)), shape)
    sequences = itertools.pairwise(query_starts)
    sums = [np.sum(terms[start:end], axis=0, dtype=np.float64) for start, end in sequences]
    return summed_to(np.reshape(sums, (len(sums), terms.shape[1])), shape)


def _gradient_of_sinks(sinks: Array, lse: ArrayLike, deltas: Array, *, is_ragged: bool) -> Array:
    """Sum -exp(sink - lse) D over the queries and the batch."""
    lse = np.asarray(lse, order="C")
    # -inf - -inf is NaN if there is neither a sink nor a key; a wrong lse may have any value.
    with np.errstate(invalid="ignore", over="ignore"):
        # The kernels round a sink to the type of lse, which includes it.
        heads = sinks.astype(lse.dtype).reshape(-1, *(() if is_ragged else (1,)))
        share = np.exp(np.minimum(np.subtract(heads, lse, dtype=np.float64), 0))
        terms = np.where(np.isneginf(heads), 0.0, -share * deltas)
    sums = np.sum(terms, axis=0 if is_ragged else -1, dtype=np.float64)
    return summed_to(np.asarray(sums), sinks.shape)


def _set_blind_rows(
    deltas: Array, output: ArrayLike, grad_lse: ArrayLike | None, sees_a_key: Callable[[], Array]
) -> None:
    """Ignore NaN and inf in the gradient of the output of a fully masked row.

    The output of such a row is 0. The output of a row whose sink has nearly all weight may be 0
    too, if it is rounded to 16 bits. `sees_a_key` distinguishes them, and is called only if needed.
    """
    is_nan = np.isnan(deltas)
    if not is_nan.any():
        return
    is_nan &= ~(np.asarray(output) != 0).any(axis=-1)
    if is_nan.any():
        is_nan &= ~sees_a_key()
        deltas[is_nan] = 0 if grad_lse is None else -np.asarray(grad_lse)[is_nan]


def _sees_a_key(
    arrays: tuple[tuple[ArrayLike, ArrayLike, ArrayLike], tuple[Any, ...], ArrayLike | None],
    options: Any,
) -> Array:
    """Return which rows see a key: the rows whose attention to values of 1 is not 0."""
    (query, key, value), starts, mask = arrays
    (value,) = as_stored_arrays(value=value)
    left_out = ("sinks", "dropout_p", "dropout_seed", "dropout_origin")
    others = {name: option for name, option in options.items() if name not in left_out}
    ones = np.broadcast_to(np.ones((), value.dtype), (*value.shape[:-1], 1))
    attention: Any = _core.attention_ragged if starts else _core.attention
    result: Array = attention(query, key, ones, *starts, mask, others)
    return np.asarray(result[..., 0] != 0)
