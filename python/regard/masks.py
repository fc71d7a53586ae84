"""Masks that say which keys a query may attend to.

A mask is a bool array, True where a query may attend, that broadcasts to
``(..., heads, q_len, kv_len)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._inputs import count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["as_additive", "causal"]


def causal(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    query_offset: ArrayLike = 0,
) -> NDArray[np.bool_]:
    """Let each query attend to its own position and those before it.

    Query ``i`` sits at position ``i + query_offset`` and may attend to key ``j`` iff
    ``j <= i + query_offset``.

    Parameters
    ----------
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys; `q_len` when not given.
    query_offset : int or integer array, optional
        How many keys precede the first query: one number, or one per batch entry. 0 aligns the
        first query with the first key (PyTorch, JAX); ``kv_len - q_len`` aligns the last query
        with the last key (FlashAttention). It may be negative: queries before the first key
        attend to none.

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(q_len, kv_len)`` for one offset; ``(*batch, 1, q_len, kv_len)`` for offsets of
        shape ``batch``, where the 1 stands for the heads.

    Raises
    ------
    TypeError
        If a length or an offset is not an integer.
    ValueError
        If a length is negative.

    See Also
    --------
    regard.scaled_dot_product_attention : ``is_causal=True`` does the same without a mask.

    Examples
    --------
    >>> import regard
    >>> regard.masks.causal(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])

    One new query behind four cached keys, and behind two:

    >>> regard.masks.causal(1, 5, query_offset=[4, 2]).astype(int)[:, 0]
    array([[[1, 1, 1, 1, 1]],
    <BLANKLINE>
           [[1, 1, 1, 0, 0]]])
    """
    q_len = count("q_len", q_len)
    kv_len = q_len if kv_len is None else count("kv_len", kv_len)
    last_visible = np.arange(q_len)[:, None] + _offsets(query_offset, q_len, kv_len)
    return np.arange(kv_len) <= last_visible


def as_additive(mask: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[np.floating[Any]]:
    """Turn a bool mask into one that is added to the scaled scores.

    Parameters
    ----------
    mask : array_like of bool
        True where a query may attend.
    dtype : dtype, optional
        A floating-point dtype.

    Returns
    -------
    numpy.ndarray
        The shape of `mask`, in `dtype`: 0 where `mask` is True and -inf elsewhere.

    Raises
    ------
    TypeError
        If `mask` is not bool or `dtype` is not floating-point.

    Examples
    --------
    >>> import regard
    >>> regard.masks.as_additive(regard.masks.causal(3))
    array([[  0., -inf, -inf],
           [  0.,   0., -inf],
           [  0.,   0.,   0.]], dtype=float32)
    """
    allowed = np.asarray(mask)
    if allowed.dtype != np.bool_:
        raise TypeError(f"mask must be bool (True = may attend), got {allowed.dtype}")
    to = np.dtype(dtype)
    if to.kind != "f":
        raise TypeError(f"dtype must be floating-point, got {to}")
    additive = np.zeros(allowed.shape, to)
    additive[~allowed] = -np.inf
    return additive


def _offsets(query_offset: ArrayLike, q_len: int, kv_len: int) -> int | NDArray[np.int64]:
    # An offset outside [-q_len, kv_len] hides or shows everything, as the nearest end does;
    # clipping keeps i + offset inside int64.
    if isinstance(query_offset, int) and not isinstance(query_offset, bool):
        return max(-q_len, min(query_offset, kv_len))
    offsets = np.asarray(query_offset)
    if offsets.dtype.kind not in "iu":
        raise TypeError(f"query_offset must be an int or an integer array, got {offsets.dtype}")
    if offsets.dtype.kind == "u":
        offsets = np.minimum(offsets, np.uint64(kv_len))
    clipped = np.clip(offsets.astype(np.int64), -q_len, kv_len)
    return clipped[..., None, None, None] if clipped.ndim else clipped
