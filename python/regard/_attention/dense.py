"""The fused call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from regard import _core
from regard._arguments.device import is_on_cuda
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import raise_with_hint, warn_if_zero_one
from regard._arguments.options import AttentionOptions, ResultOptions, takes_options
from regard._attention.convert import converted
from regard._attention.rows import weights_of_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]


@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Array: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    rows: slice | None = None,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    rows: slice | None = None,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array, Array]: ...
@takes_options(AttentionOptions, ResultOptions)
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    rows: slice | None = None,
    **options: Any,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    r"""Compute exact scaled-dot-product attention, fused.

    .. math:: \mathrm{output} = \mathrm{softmax}(\mathrm{scores})\,\mathrm{value}, \qquad
              \mathrm{scores} = \mathrm{scale} \cdot \mathrm{query}\,\mathrm{key}^T + \mathrm{mask}

    (Vaswani et al. 2017, "Attention Is All You Need", equation 1), without ever storing the scores:
    extra memory is a fixed amount per thread, whatever the lengths. All options compose: a key is
    visible to a query if every one of them allows it, and what no query sees is not computed.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        Float16, bfloat16 (of the package ml_dtypes), float32 or float64; integers and lists become
        float64. A 2-D array ``(q_len, head_dim)`` has no heads axis. Leading axes broadcast as in
        NumPy. Any strides are read where they lie.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        ``heads`` is a multiple of ``kv_heads``: query head ``h`` reads key head
        ``h // (heads // kv_heads)``, without a copy (grouped-query attention).
    value : array_like, shape (..., kv_heads, kv_len, value_dim)
        ``value_dim`` may differ from ``head_dim``.
    mask : array_like of bool or float, or a pair (bool, float) of both, optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float: added to the
        scores; -inf = may not attend. A pair does both, each with a shape of its own: a padding
        mask beside a position bias, say. See `regard.masks`.
    rows : slice, optional
        With `return_weights`: the queries whose weights are returned, without a step. The output is
        that of all queries, and weights of others take neither time nor memory.
    is_causal : bool, default False
        Query ``i`` sees key ``j`` only if ``j <= i + query_offset``. With 3 queries, 3 keys and
        offset 0 what is visible is::

            1 0 0
            1 1 0
            1 1 1

    query_offset : int, array_like of int or "end", default 0
        How many keys precede the first query: query ``i`` stands at position
        ``p = i + query_offset``. One number, or one per batch entry (it broadcasts to the axes
        before heads). 0 is the alignment of PyTorch and JAX. ``"end"`` is that of FlashAttention:
        the last query stands at the last key that its batch entry has (see `key_lengths`).
    window : (left, right), optional
        Key ``j`` is visible only if ``p - left <= j <= p + right``: neighbours are counted, and
        None on a side means no limit there.
    key_lengths : int or array_like of int, optional
        How many keys exist, for all or per batch entry (it broadcasts to the axes before heads):
        those at and beyond it are neither seen nor computed, whatever they hold.
    left_padding : int or array_like of int, optional
        How many keys at the start are padding, for all or per batch entry (it broadcasts to the
        axes before heads): they are neither seen nor computed, whatever they hold. Positions count
        from the first key all the same.
    scale : float, optional
        Multiplies query . key. Default ``1 / sqrt(head_dim)``.
    softcap : float, optional
        Caps the scaled scores smoothly: ``softcap * tanh(score / softcap)`` (Gemma 2).
    alibi_slopes : array_like of float, shape (heads,) or (..., heads), optional
        Attention with linear biases (Press et al. 2022): ``slope[head] * abs(p - j)`` is subtracted
        from the capped score. One slope per query head, or one per head of each batch entry (the
        axes before heads broadcast). See `regard.positional.alibi_slopes`.
    sinks : array_like of float, shape (heads,), optional
        One logit per head that joins the softmax's denominator and carries no value; it is neither
        scaled nor capped. -inf means no sink.
    dropout_p : float, default 0.0
        Drop each weight with this probability, from 0 to less than 1, and multiply the others by
        ``1 / (1 - dropout_p)``. It acts on the output and on the returned weights, not on lse.
    dropout_seed : int, optional
        Which weights are dropped, from 0 to 2**64 - 1; needed if `dropout_p` is not 0. See the
        notes.
    dropout_origin : (entry, head, position), default (0, 0, 0)
        For a call that computes a part of a larger one, such as some of its keys: where the first
        batch entry, query head and key of the part stand in the whole, which has the same weights
        dropped then.
    precision : "int8", optional
        Allow the products of queries and keys to be computed in 8-bit integers: faster for long
        inputs, and no longer exact. CPUs without an instruction for it compute in float32, as
        without this option. See the notes. Default: all in the precision of the arrays.
    return_weights : bool, default False
        Also return the attention weights.
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores, sink included.
    out : ndarray, optional
        Where to write the output: of the result's type and shape, any strides, no overlap with an
        input.
    threads : int, optional
        At most this many threads. Default: see `set_num_threads`. The result has the same bits for
        any number.
    device : {"cpu", "cuda"}, optional
        Where to compute. ``"cuda"`` copies arrays of the host to a GPU and the results back; see
        `regard.cuda`. Default: where the arrays are. If they are on a GPU, the results are too, and
        what is said here of types, options and errors is said by
        `regard.cuda.scaled_dot_product_attention`.

    Returns
    -------
    output : ndarray, shape (..., heads, q_len, value_dim)
        Of the result type of query, key and value. No heads axis if all three are 2-D.
    weights : ndarray, shape (..., heads, q_len, kv_len)
        If `return_weights`, of the output's type. Hidden keys have weight 0. With `rows`, ``q_len``
        is the number of those.
    lse : ndarray, shape (..., heads, q_len)
        If `return_lse`; float32, or float64 if the output is.

    Raises
    ------
    TypeError
        If an argument has the wrong type: an integer mask, an `out` of another type, a window that
        is not a pair, `dropout_p` without a seed, `rows` without `return_weights`.
    ValueError
        If shapes disagree, a number is out of range, `out` overlaps an input, or `precision` is
        ``"int8"`` for float64 arrays or a head_dim above 1024.
    MemoryError
        If a result or the workspace cannot be allocated. Nothing has been written then, but with
        `rows` the output may have been.

    See Also
    --------
    scaled_dot_product_attention_ragged : for packed sequences of different lengths.
    explain : says what a call would compute, and how.
    merge_attention_states : joins attention over parts of the keys.
    scaled_dot_product_attention_backward : gives the gradients.

    Notes
    -----
    A score is ``scale * (query . key)``, then capped, then biased by ALiBi, then by a float mask.

    A row that sees no key gives output 0, weights 0 and lse -inf (the sink's logit where there is
    one). What a query may not see never reaches its output, not even NaN; what it may see always
    does. Float64 is computed in float64, all else in float32. A row's bits do not depend on the
    number of threads, on other rows, on the batch or on strides.

    Whether a weight is dropped is a function of the seed and of its place: word ``j % 4`` of the
    random generator Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2,
    3") for the counter (j // 4, p, head, number of the batch entry), all modulo 2**32, is less than
    ``dropout_p * 2**32``; `dropout_origin` is added before, its position to both j and p. So no
    mask is stored, and the same arguments drop the same weights again, in
    `scaled_dot_product_attention_backward` too.

    With ``precision="int8"`` (Zhang et al. 2024, "SageAttention"), on CPUs with VNNI, a score is

    .. math:: \mathrm{scale}\,(a_q\, a_k\, \hat{q} \cdot \hat{k} + q \cdot m), \qquad
              \hat{q} = \mathrm{round}(H q / a_q), \quad \hat{k} = \mathrm{round}(H (k - m) / a_k),

    with m the mean of all keys that the kv head has in this batch entry, H a fixed rotation (a
    Hadamard matrix for each group of dimensions, whose size is the largest power of two that
    divides head_dim; Ashkboos et al. 2024, "QuaRot"), and a the largest magnitude of what is
    rounded divided by 127. The sum of 8-bit products is exact, and everything else, values
    included, is float32: what is lost is the rounding to 255 steps. Through m, a row's bits depend
    on every finite element of those keys, also where causality, a window or a mask hides it; keys
    at and beyond `key_lengths` take no part, and NaN or inf stays in the scores of its own row. The
    integers are the same on every such CPU, and `explain` names the instruction. On other CPUs
    integers would not be faster: nothing is rounded there. Few queries gain nothing, since all keys
    are rounded first.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((1, 8, 6, 64), dtype=np.float32)
    >>> key = rng.standard_normal((1, 2, 10, 64), dtype=np.float32)
    >>> value = rng.standard_normal((1, 2, 10, 64), dtype=np.float32)
    >>> regard.scaled_dot_product_attention(query, key, value).shape
    (1, 8, 6, 64)
    >>> output, weights = regard.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, query_offset=4, return_weights=True
    ... )
    >>> weights[0, 0, 0].round(2)[5:]
    array([0., 0., 0., 0., 0.], dtype=float32)

    The last 4 keys alone, in a batch of two where the second has 7 keys:

    >>> regard.scaled_dot_product_attention(
    ...     query, key, value, window=(3, 0), query_offset=4
    ... ).shape
    (1, 8, 6, 64)
    >>> keys = np.concatenate([key, key])
    >>> values = np.concatenate([value, value])
    >>> regard.scaled_dot_product_attention(query, keys, values, key_lengths=[10, 7]).shape
    (2, 8, 6, 64)
    """
    result: Array | tuple[Array, Array] | tuple[Array, Array, Array]
    if rows is not None:
        attention = scaled_dot_product_attention
        result = weights_of_rows(attention, (query, key, value), mask, rows, options)
        return result
    if mask is not None:
        warn_if_zero_one(mask)
    try:
        if options:
            options = with_arrays(options)
        result = _core.attention(query, key, value, mask, options)
    except ValueError as error:
        raise_with_hint(error, query, key)
    except TypeError:
        if not any(map(is_on_cuda, (query, key, value))):
            raise
        result = NotImplemented  # an option is an array on a GPU too
    if result is NotImplemented:
        name, arrays = "scaled_dot_product_attention", (query, key, value)
        result = converted(name, _core.attention, arrays, (), mask, options)
    return result
