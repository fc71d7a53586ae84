"""Build masks from the positions of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers, offsets, window_sides
from regard.masks._ranges import Ranges
from regard.masks._rows import check_axes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Integers


@refuses_unknown
def causal(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    query_offset: ArrayLike = 0,
) -> NDArray[np.bool_]:
    """Let each query attend to its own position and all earlier positions.

    Query ``i`` is at position ``i + query_offset`` and may attend to key ``j`` iff
    ``j <= i + query_offset``.

    Parameters
    ----------
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
    query_offset : int, integer array or "end", optional
        Number of keys before the first query, scalar or one per batch entry. 0 aligns the first
        query with the first key (PyTorch, JAX); ``"end"``, which is ``kv_len - q_len``, aligns the
        last query with the last key (FlashAttention). The offset may be negative: queries before
        the first key are then fully masked.

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(q_len, kv_len)`` for one offset; ``(*batch, 1, q_len, kv_len)`` for offsets of
        shape ``batch``, where the 1 is the heads axis.

    Raises
    ------
    TypeError
        If a length or an offset is not an integer.
    ValueError
        If a length is negative, or `query_offset` is a string other than "end".

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

    One new query after four cached keys, and after two:

    >>> regard.masks.causal(1, 5, query_offset=[4, 2]).astype(int)[:, 0]
    array([[[1, 1, 1, 1, 1]],
    <BLANKLINE>
           [[1, 1, 1, 0, 0]]])
    """
    q_len, kv_len = sizes(q_len, kv_len)
    last_visible = np.arange(q_len)[:, None] + diagonals(query_offset, 0, q_len, kv_len)
    return np.arange(kv_len) <= last_visible


@refuses_unknown
def window(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    window: tuple[SupportsIndex | None, SupportsIndex | None],
    query_offset: ArrayLike = 0,
) -> NDArray[np.bool_]:
    """Let each query attend to the keys near its own position.

    Query ``i`` is at position ``p = i + query_offset`` and may attend to key ``j`` iff
    ``p - left <= j <= p + right``. The sides count neighbors, as in FlashAttention and ONNX: a
    causal window of ``n`` keys, including the key at the query's position, is ``(n - 1, 0)``.

    Parameters
    ----------
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
    window : pair of int or None
        ``(left, right)``: the number of keys before and after its position that a query may attend
        to. None means no bound on that side.
    query_offset : int, integer array or "end", optional
        Number of keys that precede the first query, as in `causal`.

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(q_len, kv_len)`` for one offset; ``(*batch, 1, q_len, kv_len)`` for offsets of
        shape ``batch``.

    Raises
    ------
    TypeError
        If `window` is not a pair, or if a length, a side or an offset is not an integer.
    ValueError
        If a length or a side is negative, or `window` does not have two sides.

    See Also
    --------
    regard.scaled_dot_product_attention : ``window=(left, right)`` does the same without a mask, and
        computes only the keys inside the window.

    Examples
    --------
    >>> import regard
    >>> regard.masks.window(4, window=(1, 0)).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])

    The same, but the first key stays visible:

    >>> nearby, first = regard.masks.window(4, window=(1, 0)), regard.masks.padding(1, 4)
    >>> (nearby | first).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 0, 1, 1]])
    """
    q_len, kv_len = sizes(q_len, kv_len)
    left, right = window_sides(window)
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    shape = np.broadcast_shapes((q_len, kv_len), diagonals(query_offset, 0, q_len, kv_len).shape)
    visible = np.ones(shape, bool)
    if left is not None:
        visible &= keys >= rows + diagonals(query_offset, -left, q_len, kv_len)
    if right is not None:
        visible &= keys <= rows + diagonals(query_offset, right, q_len, kv_len)
    return visible


@refuses_unknown
def prefix(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    prefix_lengths: ArrayLike,
    query_offset: ArrayLike = 0,
) -> Ranges:
    """Let each query attend to a prefix, its own position and all earlier positions.

    Query ``i`` may attend to key ``j`` iff ``j < prefix_lengths`` or ``j <= i + query_offset``.
    This is the mask of a prefix language model, which reads its input in both directions and
    continues it causally.

    Parameters
    ----------
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
    prefix_lengths : int or integer array
        Number of first keys that every query may attend to, scalar or one per batch entry, in
        ``0 .. kv_len``.
    query_offset : int, integer array or "end", optional
        Number of keys that precede the first query, as in `causal`.

    Returns
    -------
    Ranges
        Shape ``(q_len, kv_len)`` for one prefix and one offset; ``(*batch, 1, q_len, kv_len)`` for
        prefixes or offsets of shape ``batch``. It stores one range per query.

    Raises
    ------
    TypeError
        If a length or an offset is not an integer.
    ValueError
        If a length is negative, a prefix is longer than `kv_len`, or `prefix_lengths` and
        `query_offset` do not broadcast.

    Examples
    --------
    >>> import regard
    >>> regard.masks.prefix(4, prefix_lengths=2).to_dense().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    q_len, kv_len = sizes(q_len, kv_len)
    after_prefix = lengths("prefix_lengths", prefix_lengths, kv_len)
    after_own = np.arange(q_len)[:, None] + diagonals(query_offset, 1, q_len, kv_len)
    try:
        last = np.maximum(after_prefix, after_own)
        return Ranges(0, last[..., 0], kv_len=kv_len)
    except ValueError:
        raise ValueError(
            "prefix_lengths and query_offset must broadcast, got shapes "
            f"{np.shape(prefix_lengths)} and {np.shape(query_offset)}"
        ) from None


def sizes(q_len: SupportsIndex, kv_len: SupportsIndex | None) -> tuple[int, int]:
    """Return the numbers of queries and keys, which are equal by default, or raise an error."""
    queries = count("q_len", q_len)
    return queries, queries if kv_len is None else count("kv_len", kv_len)


def lengths(name: str, value: ArrayLike, kv_len: int) -> Integers:
    """Return numbers of keys, each in ``0 .. kv_len``."""
    numbers = integers(name, value, any_size=True)
    check_axes(name, numbers.shape)
    outside = numbers[(numbers < 0) | (numbers > kv_len)]
    if outside.size:
        raise ValueError(f"{name} must be in 0 .. kv_len = {kv_len}, got {outside[0]}")
    return _with_heads_axis(numbers.astype(np.int64))


def diagonals(query_offset: ArrayLike, shift: int, q_len: int, kv_len: int) -> Integers:
    """Return ``query_offset + shift``, the bound of the visible keys for the first query.

    A bound outside ``[-q_len, kv_len]`` is clipped, because the nearest end hides or shows the same
    keys. The sum is a Python integer, and ``i + diagonal`` stays inside int64.
    """
    numbers = offsets(query_offset, kv_len - q_len, any_size=True)
    check_axes("query_offset", numbers.shape)
    clipped = [max(-q_len, min(int(number) + shift, kv_len)) for number in numbers.flat]
    return _with_heads_axis(np.array(clipped, np.int64).reshape(numbers.shape))


def _with_heads_axis(numbers: Integers) -> Integers:
    return numbers[..., None, None, None] if numbers.ndim else numbers
