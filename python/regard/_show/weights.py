"""Attention weights that a caller passes to be shown, and the blocks that become pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, is_floating
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array, Integers


# The most by which a row's sum may exceed 1. Weights may have been rounded to three decimals, or to
# 16 bits: bfloat16 rounds a weight by up to 1/256 of it.
_TOLERANCE = 5e-3
_TOLERANCE_OF_BFLOAT16 = 2e-2
_ENTRIES_AT_ONCE = 1 << 22


def attention_weights(
    weights: ArrayLike, name: str = "weights", *, sums: bool = True, nan: bool = True
) -> Array:
    """Return weights of shape (..., q_len, kv_len) as float32 or float64, without a needless copy.

    With `sums`, a row must add up to at most 1. Fully masked rows and rows with a sink add up to
    less. With `nan`, NaN is accepted.

    Raises
    ------
    TypeError
        If `weights` is not an array of real numbers, or is a tuple, such as the result of a call.
    ValueError
        If it has fewer than 2 axes, an entry is negative or not accepted, or an entry or the sum of
        a row is larger than 1.
    """
    if isinstance(weights, tuple):
        raise TypeError(
            f"{name} must be an array, got a tuple of {len(weights)}: pass the second entry of the "
            "result (output, weights) of a call; np.stack joins the weights of several layers"
        )
    if is_sparse(weights):
        raise TypeError(
            f"{name} must be an array of float, got {type(weights).__name__}: "
            "regard.plot.pattern draws a mask"
        )
    array = as_array(name, weights)
    if array.dtype.kind == "b":
        raise TypeError(
            f"{name} must be an array of float, got bool: regard.plot.pattern draws a mask"
        )
    if not (is_floating(array.dtype) or array.dtype.kind in "iu"):
        raise TypeError(f"{name} must be an array of float, got {array.dtype}")
    if array.ndim < 2:
        raise ValueError(f"{name} must have shape (..., q_len, kv_len), got shape {array.shape}")
    is_small = is_floating(array.dtype) and array.dtype.itemsize <= 4
    most = 1 + (_TOLERANCE_OF_BFLOAT16 if array.dtype.name == "bfloat16" else _TOLERANCE)
    array = array.astype(np.float32 if is_small else np.float64, copy=False)
    step = max(1, _ENTRIES_AT_ONCE // max(array.shape[-1], 1))
    for head in np.ndindex(array.shape[:-2]):
        for start in range(0, array.shape[-2], step):
            # Blocks of rows, so that no temporary array is as large as the weights.
            _check_rows(name, array[head][start : start + step], [*head, start], most, sums, nan)
    return array


def _check_rows(
    name: str, rows: Array, place: list[int], most: float, sums: bool, nan: bool
) -> None:
    with np.errstate(invalid="ignore"):  # from signaling NaN
        is_wrong = (rows < 0) | (rows > most) | (np.isnan(rows) & (not nan))
        totals = rows.sum(axis=-1, dtype=np.float64) if sums else np.zeros(len(rows))
        is_excess = totals > most
    *head, start = place
    if is_wrong.any():
        row, key = np.argwhere(is_wrong)[0].tolist()
        raise ValueError(
            f"{name} must be from 0 to 1, got {rows[row, key]:.6g} at {[*head, start + row, key]}"
            ": weights are the softmax of scores, before dropout"
        )
    if is_excess.any():
        row = int(is_excess.argmax())
        raise ValueError(
            f"{name} must add up to at most 1 in each row, got {totals[row]:.6g} in row "
            f"{[*head, start + row]}: swap the last two axes if queries and keys are exchanged; "
            "weights after dropout, which are larger, cannot be shown"
        )


def place_of_head(head: Any, lead: tuple[int, ...], name: str = "head") -> tuple[int, ...]:
    """Return the index that the argument `head` selects in the leading axes.

    `head` may omit indices for leading axes of length 1 at the front.
    """
    place = integers(name, head, "an int or a tuple of ints").reshape(-1).tolist()
    if place and not lead:
        raise ValueError(f"{name} must be left out if there are no leading axes, got {head!r}")
    missing = len(lead) - len(place)
    if missing > 0 and lead[:missing] == (1,) * missing:
        place = [0] * missing + place
    if len(place) != len(lead):
        raise ValueError(
            f"{name} must have an int for each of the leading axes {lead}, got {head!r}"
        )
    for number, length in zip(place, lead, strict=True):
        if not -length <= number < length:
            raise ValueError(f"{name} must be within the leading axes {lead}, got {head!r}")
    return tuple(number % length for number, length in zip(place, lead, strict=True))


def edges(length: int, pixels: int, first: int = 0) -> Integers:
    """Return the first index of each block, and the end of the last one."""
    return first + np.arange(pixels + 1, dtype=np.int64) * length // pixels


def reduced(values: Array, of_axis: Integers, axis: int, reduce: str) -> Array:
    """Reduce the blocks between edges along an axis: max, or sum in float64."""
    if reduce == "max":
        return np.asarray(np.maximum.reduceat(values, of_axis[:-1], axis=axis))
    return np.asarray(np.add.reduceat(values, of_axis[:-1], axis=axis, dtype=np.float64))


def pooled(values: Array, rows: Integers, columns: Integers, reduce: str) -> Array:
    """Reduce the blocks between the edges of the last two axes to pixels."""
    pixels = reduced(reduced(values, columns, -1, reduce), rows, -2, reduce)
    return pixels / areas(rows, columns) if reduce == "mean" else pixels


def areas(rows: Integers, columns: Integers) -> Integers:
    """Return the number of entries of each pixel."""
    return np.asarray(np.diff(rows)[:, None] * np.diff(columns))
