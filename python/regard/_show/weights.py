"""Attention weights that a caller passes to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, is_floating
from regard._arguments.masks import is_sparse
from regard._arguments.numbers import integers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

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
    stored = array.dtype
    tolerance = _TOLERANCE_OF_BFLOAT16 if stored.name == "bfloat16" else _TOLERANCE
    is_small = is_floating(stored) and stored.itemsize <= 4
    array = array.astype(np.float32 if is_small else np.float64, copy=False)
    for place, rows in _blocks(array):
        _check_entries(name, array, place, rows, tolerance, nan)
        if sums:
            _check_sums(name, array, place, rows, tolerance)
    return array


def _blocks(array: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield blocks of rows, so that no temporary array is as large as the weights."""
    q_len, kv_len = array.shape[-2:]
    step = max(1, _ENTRIES_AT_ONCE // max(kv_len, 1))
    for head in np.ndindex(array.shape[:-2]):
        for start in range(0, q_len, step):
            yield (*head, start), array[head][start : start + step]


def _check_entries(
    name: str, array: Array, place: tuple[int, ...], rows: Array, tolerance: float, nan: bool
) -> None:
    with np.errstate(invalid="ignore"):  # from signaling NaN
        is_wrong = (rows < 0) | (rows > 1 + tolerance)
        if not nan:
            is_wrong |= np.isnan(rows)
    if is_wrong.any():
        row, key = np.argwhere(is_wrong)[0].tolist()
        entry = [*place[:-1], place[-1] + row, key]
        found = rows[row, key]
        hint = "" if np.isnan(found) else _hint(array, place)
        raise ValueError(f"{name} must be from 0 to 1, got {found:.6g} at {entry}{hint}")


def _check_sums(
    name: str, array: Array, place: tuple[int, ...], rows: Array, tolerance: float
) -> None:
    with np.errstate(invalid="ignore"):
        sums = rows.sum(axis=-1, dtype=np.float64)
        is_wrong = sums > 1 + tolerance
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise ValueError(
            f"{name} must add up to at most 1 in each row, got {sums[row]:.6g} in row "
            f"{[*place[:-1], place[-1] + row]}{_hint(array, place)}"
        )


def _hint(array: Array, place: tuple[int, ...]) -> str:
    """Suggest the actual content of the array, judged by the first wrong head."""
    head = array[place[:-1]]
    if (head < 0).any() or (head > 1.5).any():
        return ": these look like scores; weights are their softmax"
    columns = head.sum(axis=-2, dtype=np.float64)
    if np.allclose(columns, 1, atol=_TOLERANCE):
        return (
            ": its columns add up to 1, so queries and keys are exchanged; swap the last two axes"
        )
    return "; weights after dropout, which are larger, cannot be shown"


def place_of_head(head: Any, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index that the argument `head` selects in the leading axes.

    `head` may omit indices for leading axes of length 1 at the front.
    """
    place = integers("head", head, "an int or a tuple of ints").reshape(-1).tolist()
    if place and not lead:
        raise ValueError(f"head must be left out if there are no leading axes, got {head!r}")
    missing = len(lead) - len(place)
    if missing > 0 and lead[:missing] == (1,) * missing:
        place = [0] * missing + place
    if len(place) != len(lead):
        raise ValueError(f"head must have an int for each of the leading axes {lead}, got {head!r}")
    for number, length in zip(place, lead, strict=True):
        if not -length <= number < length:
            raise ValueError(f"head must be within the leading axes {lead}, got {head!r}")
    return tuple(number % length for number, length in zip(place, lead, strict=True))
