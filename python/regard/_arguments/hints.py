"""Give hints about mistakes that types and shapes do not reveal."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_FIRST_GLANCE, _SECOND_GLANCE, _BLOCK = 16, 1024, 65536
_ZERO_ONE = frozenset((0.0, 1.0))
# More heads than any common model has.
_MANY_HEADS = 128

_has_warned = False


def warn_if_zero_one(mask: Any) -> None:
    """Warn, once in a process, about a float mask that contains only zeros and ones.

    Such a mask is added to the scores and hides nothing. At most 1024 elements are read, unless all
    of them are zeros and ones.
    """
    global _has_warned
    if _has_warned or not isinstance(mask, np.ndarray) or mask.dtype.kind != "f":
        return
    if not holds_zero_one(mask):
        return
    _has_warned = True
    warnings.warn(
        f"mask contains only zeros and ones in {mask.dtype}, which are added to the scores and "
        "hide nothing: pass mask.astype(bool) if 1 means may attend",
        UserWarning,
        stacklevel=level_of_caller(),
    )


def level_of_caller() -> int:
    """Return the `stacklevel` of a warning that refers to the line that called regard."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("regard."):
        frame, level = frame.f_back, level + 1
    return level


def holds_zero_one(mask: NDArray[Any]) -> bool:
    """Return whether a mask contains only zeros and ones, both among its first 1024 elements."""
    mask = np.asarray(mask)  # rows of np.matrix are matrices
    if not _ZERO_ONE.issuperset(mask.flat[:_FIRST_GLANCE].tolist()):
        return False
    first = mask.flat[:_SECOND_GLANCE]
    ones = first == 1
    if not ones.any() or ones.all() or not (ones | (first == 0)).all():
        return False
    for start in range(_SECOND_GLANCE, mask.size, _BLOCK):
        block = mask.flat[start : start + _BLOCK]
        if not ((block == 0) | (block == 1)).all():
            return False
    return True


def layout_hint(query_shape: tuple[int, ...], key_shape: tuple[int, ...]) -> str:
    """Return a hint to append to an error if heads and lengths look swapped, else "".

    They do if the heads are a multiple of the key heads in ``(..., length, heads, dim)``, and in
    ``(..., heads, length, dim)`` they are not, or there are more than 128 key heads.
    """
    if min(len(query_shape), len(key_shape)) < 4:
        return ""
    heads, q_len = query_shape[-3:-1]
    kv_heads, kv_len = key_shape[-3:-1]
    swapped_fits = 2 <= kv_len < kv_heads and q_len % kv_len == 0 and q_len > 0
    as_given_fits = heads % kv_heads == 0 and kv_heads <= _MANY_HEADS if kv_heads else True
    if as_given_fits or not swapped_fits:
        return ""
    return (
        "; arrays are (batch, heads, length, dim) here: if these are (batch, length, heads, dim), "
        "pass query.swapaxes(-3, -2), and key and value likewise"
    )


def column_hint(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return a hint to append to an error if an array has an axis of length 1 too many, else ""."""
    return f"; pass {name}[{':, ' * len(wanted)}0]" if shape == (*wanted, 1) else ""


def refuse_grid(window: Any) -> None:
    """Raise TypeError for a window that has a pair of sides for each axis of a grid."""
    if not isinstance(window, tuple | list) or not window:
        return
    if all(isinstance(each, tuple | list) for each in window):
        raise TypeError(
            f"window must be a pair (left, right) of integers or None, got {window!r}: "
            "regard.masks.neighborhood(shape, window) makes the mask of a grid"
        )


def raise_with_hint(error: ValueError, query: ArrayLike, key: ArrayLike) -> NoReturn:
    """Raise the error of a call again, with a hint if heads and lengths look swapped."""
    hint = layout_hint(np.shape(query), np.shape(key)) if "heads" in str(error) else ""
    raise (ValueError(f"{error}{hint}") if hint else error) from None
