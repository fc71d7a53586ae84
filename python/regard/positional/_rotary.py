"""Rotate pairs of columns by angles that grow with the position (RoPE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import broadcasts_to, check_out, compute_type, stored
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import flag, integers
from regard.positional._rotary_frequencies import (
    check_rotary_dim,
    even,
    refuse_with_cache,
    rotary_cache,
)
from regard.positional._scaling import read_rope_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]


@refuses_unknown
def rotary(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    base: SupportsFloat | None = None,
    rotary_dim: SupportsIndex | None = None,
    interleaved: bool = False,
    inverse_frequencies: ArrayLike | None = None,
    scaling: Mapping[str, Any] | None = None,
    length: SupportsIndex | None = None,
    is_query: bool | None = None,
    cache: tuple[ArrayLike, ArrayLike] | None = None,
    out: Array | None = None,
) -> Array:
    r"""Rotate queries or keys by their positions (RoPE).

    The columns of `x` form pairs :math:`(a, b)`. Pair :math:`m` of the row at position :math:`p`
    becomes

    .. math:: (a \cos\theta - b \sin\theta,\; a \sin\theta + b \cos\theta), \quad
              \theta = p \cdot \mathrm{base}^{-2m / \mathrm{rotary\_dim}}

    so that the scalar product of a rotated query and a rotated key depends only on the difference
    of their positions [1]_.

    Parameters
    ----------
    x : array_like, shape (..., heads, length, head_dim)
        Queries or keys; a 2-D array ``(length, head_dim)`` has no heads axis. Float16, bfloat16,
        float32 or float64; integers and lists become float64. For ``(batch, length, heads,
        head_dim)`` storage, pass ``x.swapaxes(1, 2)``: arrays of any strides are read in place.
    positions : array_like of int, shape (length,) or (*batch, length), optional
        The position of each row, the same for all heads; `batch` broadcasts to the axes of `x`
        before heads. Default: ``0 .. length - 1``. Rows that follow ``n`` cached keys have the
        positions ``n + np.arange(length)``. Positions may be negative. If `scaling` has
        ``mrope_section``, the shape is ``(3, *batch, length)``, with positions in time, down and
        across; the default is that of text, whose three positions are equal.
    rotary_dim : int, optional
        Number of columns that are rotated, beginning with the first (partial rotation); the other
        columns are copied. Must be even. Default: the ``partial_rotary_factor`` of `scaling`, or
        all columns.
    interleaved : bool, default False
        Which columns form a pair. False: ``m`` and ``m + rotary_dim / 2``, from the two halves
        (GPT-NeoX, Llama, the ONNX default). True: the neighbors ``2 m`` and ``2 m + 1`` (RoFormer,
        GPT-J).
    base, inverse_frequencies, scaling, length, is_query : optional
        The frequencies of the pairs, and the factor of queries, as in `rotary_cache`.
    cache : pair of array_like, optional
        Precomputed cosines and sines, ``(cos, sin)``: see `rotary_cache`. Two 2-D arrays
        ``(max_position, rotary_dim / 2)`` are tables with a row for each position from 0 on, and
        `positions` selects from them. Arrays ``(*batch, length, rotary_dim / 2)`` with batch axes
        contain one row for each row of `x`, and `positions` must then be omitted. Pass a cache that
        contains every angle twice, as in Hugging Face models, as ``cos[..., :rotary_dim//2]``. Such
        a cache is rejected if `rotary_dim` is also given or if it has more than ``head_dim / 2``
        columns. Otherwise every column is interpreted as a pair.
    out : ndarray, optional
        Array to which the result is written. It must have the type and shape of the result. Any
        strides are accepted. It may be `x`.

    Returns
    -------
    ndarray
        The rotated array, with the shape and type of `x`.

    Raises
    ------
    TypeError
        If an argument has the wrong type: float positions, an `interleaved` that is not a bool, a
        cache that is not a pair, an `out` of another type; or if `is_query` is required.
    ValueError
        If shapes disagree, `rotary_dim` is odd or larger than head_dim, a position is outside the
        cache, the cache contains every angle twice, `scaling` is wrong, or `base`, `scaling`,
        `inverse_frequencies` and `cache` contradict each other.

    See Also
    --------
    rotary_cache : computes cosines and sines for many calls.
    rotary_frequencies : computes the frequencies, and documents the scaling formulas.

    Notes
    -----
    Angles, cosines and sines are computed in float64, so that they are accurate at any position: a
    float32 angle near 100 000, as many frameworks compute it, is rounded by up to 0.004. The
    rotation itself is computed in float64 for float64 and in float32 for all narrower types. The
    bits of an output row depend only on its input row and its position, except for the scalings
    ``dynamic`` and ``longrope``, whose frequencies depend on the length of the sequence: pass
    `length` to fix them.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
       section 3. https://arxiv.org/abs/2104.09864

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> x = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    >>> regard.positional.rotary(x).round(4)
    array([[1.    , 0.    , 0.    , 0.    ],
           [0.5403, 0.    , 0.8415, 0.    ]])
    >>> regard.positional.rotary(x, interleaved=True).round(4)
    array([[1.    , 0.    , 0.    , 0.    ],
           [0.5403, 0.8415, 0.    , 0.    ]])

    One new query for each of two sequences, after 5 and after 3 cached keys:

    >>> query = np.ones((2, 8, 1, 64), np.float32)
    >>> cached = np.array([5, 3])
    >>> regard.positional.rotary(query, cached[:, None] + np.arange(1)).shape
    (2, 8, 1, 64)
    """
    source = stored("x", x)
    interleaved = flag("interleaved", interleaved)
    if source.ndim < 2:
        raise ValueError(
            f"x must have at least 2 axes, (..., heads, length, head_dim), got shape {source.shape}"
        )
    if cache is None:
        axes = 0 if read_rope_parameters(scaling).axes is None else 1
        if positions is None:
            rows = np.broadcast_to(np.arange(source.shape[-2]), (3,) * axes + source.shape[-2:-1])
        else:
            rows = integers("positions", positions)
            if axes == 0 or rows.shape[:1] in ((), (3,)):  # `rotary_cache` refuses the others
                _check_rows("positions", rows.shape[axes:], source.shape)
        cos, sin = rotary_cache(
            rows,
            rotary_dim,
            head_dim=source.shape[-1] if inverse_frequencies is None else None,
            base=base,
            inverse_frequencies=inverse_frequencies,
            scaling=scaling,
            length=length,
            is_query=is_query,
        )
    else:
        refuse_with_cache(
            "cache",
            base=base,
            scaling=scaling,
            length=length,
            is_query=is_query,
            inverse_frequencies=inverse_frequencies,
        )
        cos, sin = _looked_up(cache, positions, source.shape)
        _refuse_doubled(cos.shape[-1], rotary_dim, source.shape[-1])
        check_rotary_dim(rotary_dim, cos.shape[-1], "cache")
    if 2 * cos.shape[-1] > source.shape[-1]:
        name = "rotary_dim" if inverse_frequencies is None else "twice len(inverse_frequencies)"
        raise ValueError(
            f"{name} must be at most head_dim, got {2 * cos.shape[-1]} and {source.shape[-1]}"
        )
    if out is not None:
        check_out("out", out, source.dtype, source.shape)
    result = np.empty(source.shape, source.dtype) if out is None else out
    rotate(source, cos, sin, interleaved, result)
    return result


def rotate(source: Array, cos: Array, sin: Array, interleaved: bool, result: Array) -> None:
    """Write rotated rows to `result`, which may be `source`."""
    pairs = cos.shape[-1]
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    compute = compute_type(source.dtype)
    cos, sin = cos.astype(compute, copy=False), sin.astype(compute, copy=False)
    if cos.ndim > 2:
        cos, sin = cos[..., None, :, :], sin[..., None, :, :]
    # NaN and infinity appear in the result without a warning, as in the other calls.
    with np.errstate(over="ignore", invalid="ignore"):
        a = source[..., first].astype(compute, copy=False)
        b = source[..., second].astype(compute, copy=False)
        turned_a = a * cos
        turned_a -= b * sin
        turned_b = a * sin
        turned_b += b * cos
        # `result` may share memory with `source`; only the last columns of `source` are unread.
        rest = source[..., 2 * pairs :]
        if np.may_share_memory(rest, result):
            rest = rest.copy()
        result[..., first] = turned_a
        result[..., second] = turned_b
        result[..., 2 * pairs :] = rest


def _looked_up(
    cache: tuple[ArrayLike, ArrayLike], positions: ArrayLike | None, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return the cosines and sines for the rows of an `x` of shape `shape`."""
    if not isinstance(cache, tuple | list):
        raise TypeError(f"cache must be a pair (cos, sin), got {type(cache).__name__}")
    if len(cache) != 2:
        raise ValueError(f"cache must be a pair (cos, sin), got {len(cache)} arrays")
    cos, sin = (stored(f"cache[{i}]", part) for i, part in enumerate(cache))
    if cos.shape != sin.shape or cos.ndim < 2 or cos.shape[-1] == 0:
        raise ValueError(
            "cache must hold two arrays (max_position, rotary_dim / 2) or (*batch, length, "
            f"rotary_dim / 2) of the same shape, got {cos.shape} and {sin.shape}"
        )
    if cos.ndim > 2:
        if positions is not None:
            raise ValueError(
                f"positions select rows of a 2-D cache, got a cache of shape {cos.shape}: leave "
                "positions out"
            )
        _check_rows("cache", cos.shape[:-1], shape)
        return cos, sin
    stored_rows, length = cos.shape[0], shape[-2]
    if positions is None:
        if stored_rows < length:
            raise ValueError(
                f"cache must have a row for each of {length} positions, got {stored_rows} rows"
            )
        return cos[:length], sin[:length]
    rows = integers("positions", positions)
    _check_rows("positions", rows.shape, shape)
    outside = rows[(rows < 0) | (rows >= stored_rows)]
    if outside.size:
        raise ValueError(
            f"positions must be in 0 .. {stored_rows - 1}, the rows of the cache, got {outside[0]}"
        )
    return cos[rows], sin[rows]


def _check_rows(name: str, rows: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless there is one entry for each row of `x` in each batch entry."""
    batch, length = shape[:-3], shape[-2]
    if rows[-1:] != (length,) or not broadcasts_to(rows[:-1], batch):
        raise ValueError(
            f"{name} must have one entry for each row of x: ({length},) or (*batch, {length}) with "
            f"batch axes that broadcast to {batch}, got {rows}"
        )


def _refuse_doubled(columns: int, rotary_dim: SupportsIndex | None, head_dim: int) -> None:
    """Raise ValueError for a cache with a column for each column, not each pair, of `x`."""
    if rotary_dim is None:
        is_doubled = head_dim < 2 * columns <= 2 * head_dim and columns % 2 == 0
        beside = f"head_dim {head_dim}"
    else:
        is_doubled = columns == even(rotary_dim)
        beside = f"rotary_dim {rotary_dim}"
    if is_doubled:
        raise ValueError(
            f"cache must have rotary_dim / 2 columns, got {columns} with {beside}: if it holds "
            "every angle twice, as Hugging Face's does, pass cos[..., :rotary_dim//2] and "
            "sin[..., :rotary_dim//2]"
        )
