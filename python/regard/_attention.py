"""The fused call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from regard import _core
from regard._inputs import as_float_arrays, as_mask

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
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    scale: float | None = None,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    out: Array | None = None,
    threads: int | None = None,
) -> Array: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    scale: float | None = None,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    out: Array | None = None,
    threads: int | None = None,
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    scale: float | None = None,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    out: Array | None = None,
    threads: int | None = None,
) -> tuple[Array, Array]: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    scale: float | None = None,
    return_weights: Literal[True],
    return_lse: Literal[True],
    out: Array | None = None,
    threads: int | None = None,
) -> tuple[Array, Array, Array]: ...
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
    threads: int | None = None,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    r"""Compute exact scaled-dot-product attention, fused.

    .. math:: \mathrm{output} = \mathrm{softmax}(\mathrm{scale} \cdot
              \mathrm{query}\,\mathrm{key}^T + \mathrm{mask})\,\mathrm{value}

    (Vaswani et al. 2017, "Attention Is All You Need", equation 1), without ever storing the scores:
    extra memory is a fixed amount per thread, whatever the lengths.

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        Float32 or float64; integers and lists become float64. A 2-D array ``(q_len, head_dim)`` has
        no heads axis. Leading axes broadcast as in NumPy. Any strides are read where they lie.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        ``heads`` is a multiple of ``kv_heads``: query head ``h`` reads key head
        ``h // (heads // kv_heads)``, without a copy (grouped-query attention).
    value : array_like, shape (..., kv_heads, kv_len, value_dim)
        ``value_dim`` may differ from ``head_dim``.
    mask : array_like of bool or float, optional
        Broadcasts to ``(..., heads, q_len, kv_len)``. Bool: True = may attend. Float: added to the
        scaled scores; -inf = may not attend.
    is_causal : bool, default False
        Query ``i`` sees key ``j`` only if ``j <= i + query_offset``. With 3 queries, 3 keys and
        offset 0 what is visible is::

            1 0 0
            1 1 0
            1 1 1

    query_offset : int or array_like of int, default 0
        How many keys precede the first query: one number, or one per batch entry (it broadcasts to
        the axes before heads). 0 is PyTorch's alignment, ``kv_len - q_len`` FlashAttention's; a
        key-value cache passes its length before the queries' own keys.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    return_weights : bool, default False
        Also return the attention weights.
    return_lse : bool, default False
        Also return the natural log-sum-exp of every row's visible scores.
    out : ndarray, optional
        Where to write the output: of the result's type and shape, any strides, no overlap with an
        input.
    threads : int, optional
        At most this many threads. Default: see `set_num_threads`. The result has the same bits for
        any number.

    Returns
    -------
    output : ndarray, shape (..., heads, q_len, value_dim)
        Of the inputs' result type. No heads axis if query, key and value are all 2-D.
    weights : ndarray, shape (..., heads, q_len, kv_len)
        If `return_weights`. Hidden keys have weight 0.
    lse : ndarray, shape (..., heads, q_len)
        If `return_lse`.

    Raises
    ------
    TypeError
        If an argument has the wrong type: a float16 query, an integer mask, an `out` of another
        type.
    ValueError
        If shapes disagree, a number is out of range, or `out` overlaps an input.
    MemoryError
        If a result or the workspace cannot be allocated. Nothing has been written then.

    Notes
    -----
    A row that sees no key gives output 0, weights 0 and lse -inf. What a query may not see never
    reaches its output, not even NaN; what it may see always does. Float32 is computed in float32,
    float64 in float64. A row's bits do not depend on the number of threads, on other rows, on the
    batch or on strides.

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
    """
    if not _core.are_readable(query, key, value, mask):
        query, key, value = as_float_arrays(query=query, key=key, value=value)
        mask = as_mask(mask)
    result: Array | tuple[Array, Array] | tuple[Array, Array, Array] = _core.attention(
        query,
        key,
        value,
        mask,
        is_causal,
        query_offset,
        scale,
        return_weights,
        return_lse,
        out,
        threads,
    )
    return result
