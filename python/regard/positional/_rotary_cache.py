"""Precomputed cosines and sines of a rotary embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import floating
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers, real_number
from regard.positional._frequencies import even, numbers_of_pairs
from regard.positional._rope_parameters import read_rope_parameters
from regard.positional._rotary_frequencies import rotary_frequencies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Array = NDArray[Any]


@refuses_unknown
def rotary_cache(
    positions: ArrayLike,
    rotary_dim: SupportsIndex | None = None,
    *,
    head_dim: SupportsIndex | None = None,
    base: SupportsFloat | None = None,
    inverse_frequencies: ArrayLike | None = None,
    scaling: Mapping[str, Any] | None = None,
    length: SupportsIndex | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """Compute the cosines and sines of a rotary embedding once, for many calls of `rotary`.

    Parameters
    ----------
    positions : int or array_like of int
        A number ``n`` means the positions ``0 .. n - 1``; an array contains the positions
        themselves.
    rotary_dim : int, optional
        Number of columns that are rotated; must be even. May be omitted if `inverse_frequencies` is
        given.
    head_dim : int, optional
        Number of columns of a head, in place of `rotary_dim`: see `rotary_frequencies`.
    base : float, optional
        Pair ``m`` turns by ``base ** (-2 m / rotary_dim)`` from one position to the next. Default:
        the ``rope_theta`` of `scaling`, or 10000.
    inverse_frequencies : array_like of float, shape (rotary_dim / 2,), optional
        The angle by which each pair turns, in place of the powers of `base`.
    scaling : mapping, optional
        As in `rotary`; see `rotary_frequencies`. Cosines and sines are multiplied by its attention
        factor.
    length : int, optional
        The length of the whole sequence, for the scalings ``dynamic`` and ``longrope``. By default,
        the sequence ends at the largest position.
    dtype : dtype, optional
        A floating-point dtype. The angles are computed in float64 for every dtype.

    Returns
    -------
    cos, sin : numpy.ndarray
        Shape ``(n, rotary_dim / 2)``, or ``(*positions.shape, rotary_dim / 2)``, in `dtype`.

    Raises
    ------
    TypeError
        If a position or `rotary_dim` is not an integer, or a number is not real; if none of
        `rotary_dim`, `head_dim` and `inverse_frequencies` is given.
    ValueError
        If `rotary_dim` is odd or less than 2, or disagrees with `inverse_frequencies`; if `base` is
        not positive and finite; if `head_dim`, `base` or `scaling` is given together with
        `inverse_frequencies`; if `scaling` is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> cos, sin = regard.positional.rotary_cache(4096, 64, dtype=np.float32)
    >>> cos.shape
    (4096, 32)
    >>> key = np.ones((2, 8, 10, 64), np.float32)
    >>> regard.positional.rotary(key, np.arange(90, 100), cache=(cos, sin)).shape
    (2, 8, 10, 64)
    """
    rows = integers("positions", positions)
    if rows.ndim == 0:
        rows = np.arange(count("positions", rows.item()))
    factor = 1.0
    if inverse_frequencies is not None:
        refuse_with_cache("inverse_frequencies", base=base, scaling=scaling, head_dim=head_dim)
        frequencies = numbers_of_pairs("inverse_frequencies", inverse_frequencies)
        check_rotary_dim(rotary_dim, frequencies.size, "inverse_frequencies")
    elif rotary_dim is None and head_dim is None:
        raise TypeError(
            "rotary_dim must be an int, or head_dim or inverse_frequencies must be given"
        )
    else:
        if length is None and read_rope_parameters(scaling).trained_length is not None:
            length = _end(rows)
        frequencies, factor = rotary_frequencies(
            rotary_dim, head_dim=head_dim, base=base, scaling=scaling, length=length
        )
    angle = rows[..., None] * frequencies
    to = floating("dtype", dtype)
    return (np.cos(angle) * factor).astype(to), (np.sin(angle) * factor).astype(to)


def _end(rows: Array) -> int:
    """Return the length of a sequence that ends at the largest position."""
    return max(int(rows.max()) + 1, 0) if rows.size else 0


def check_rotary_dim(rotary_dim: SupportsIndex | None, pairs: int, source: str) -> None:
    """Raise ValueError if the number of columns is not twice the number of pairs of `source`."""
    if rotary_dim is not None and even(rotary_dim) != 2 * pairs:
        raise ValueError(
            f"rotary_dim must be twice the pairs of {source}, got {rotary_dim} and {pairs} pairs"
        )


def refuse_with_cache(name: str, *, base: SupportsFloat | None, **others: object) -> None:
    """Raise ValueError if an argument is given that `name` excludes."""
    if base is not None:
        real_number("base", base)
    for other, value in {"base": base, **others}.items():
        if value is not None:
            raise ValueError(f"{name} already determines the angles: leave {other} out")
